"""The trainer's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from agentgym.errors import nearest
from agentgym.trainer.mismatch_config import MismatchConfig

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
DType: TypeAlias = Literal["float32", "bfloat16"]
TrainerEngine: TypeAlias = Literal["auto", "titan", "transformers"]
Recompute: TypeAlias = Literal["none", "elementwise", "selective", "full"]
ReduceGradients: TypeAlias = Literal["auto", "each", "last"]
GatherWeights: TypeAlias = Literal["auto", "each", "once"]
Float8: TypeAlias = Literal["off", "tensorwise", "rowwise", "rowwise_with_gw_hp", "emulated"]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every matrix of a layer, by its Hugging Face name."""
OTHER_TARGETS = ("qkv_proj", "gate_up_proj", "in_proj", "out_proj", "in_proj_qkv", "w1", "w2", "w3")
"""Of families whose layers have others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW and its learning rate: a linear warm-up, a plateau, a linear decay (WSD, arXiv:2404.06395)."""

    lr: float = 1e-6
    """The learning rate of the plateau; the first setting to tune. By default it follows from the model's size."""
    beta1: float = 0.9
    """The decay of AdamW's mean of gradients."""
    beta2: float = 0.95
    """The decay of AdamW's mean of squared gradients."""
    eps: float = 1e-8
    """What AdamW adds to the root of the squared mean."""
    weight_decay: float = 0.0
    """The decoupled weight decay, multiplied by the learning rate."""
    warmup_steps: int = 5
    """Steps over which the rate rises linearly to lr."""
    decay_ratio: float = 0.0
    """The share of all steps, at the end, over which the rate falls linearly to 0; 0 keeps the plateau."""
    max_grad_norm: float = 1.0
    """The gradient is scaled down to this norm where it is longer."""

    def __post_init__(self) -> None:
        if self.lr < 0 or self.max_grad_norm <= 0:
            raise ValueError(
                f"optimizer: lr {self.lr} must be at least 0 and max_grad_norm {self.max_grad_norm} above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """The critic's head, which some advantages ask for."""

    lr: float = 1e-2
    """The learning rate of the critic's head."""
    epochs: int = 4
    """Updates of the head for each update of the policy."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.epochs < 1:
            raise ValueError(f"critic: lr {self.lr} must be above 0 and epochs {self.epochs} at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters beside frozen weights: y = W x + alpha / rank * B A x (arXiv:2106.09685)."""

    rank: int = 0
    """The rank of A and B; 0 trains all weights instead."""
    alpha: float = 32.0
    """The scale of the adapters' part; it need not change with the rank ("LoRA Without Regret", Schulman, 2025)."""
    targets: tuple[str, ...] = LORA_TARGETS
    """The matrices of each layer that get adapters; all of them learn best ("LoRA Without Regret")."""

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.alpha < math.inf:
            raise ValueError(f"lora: rank {self.rank} must be at least 0 and alpha {self.alpha:g} above 0 and finite")
        for name in self.targets:
            if name not in LORA_TARGETS + OTHER_TARGETS:
                hint = nearest(name, LORA_TARGETS + OTHER_TARGETS)
                raise ValueError(f"lora.targets has {name!r}, which is not a matrix of a layer.{hint}")
        if not self.targets:
            raise ValueError("lora.targets is empty; name at least one, or set trainer.lora.rank to 0")

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    engine: TrainerEngine = "auto"
    """`titan` is TorchTitan, for models of the families that it computes exactly; `transformers` takes any model that
    transformers knows; `auto` is titan where it computes the model, a mixture of experts with expert_parallel alone."""
    procs: int = 1
    """Processes of the trainer, one for each of its GPUs."""
    tensor_parallel: int = 1
    """Ranks that share the matrices of each layer; for models whose layers do not fit one GPU."""
    context_parallel: int = 1
    """Ranks that share the tokens of each row; for long rows."""
    expert_parallel: int = 1
    """Ranks that share the experts of each layer and send each other tokens; of a mixture that `titan` computes."""
    data_parallel_shard: int = -1
    """Ranks over which FSDP shards weights and optimizer; -1 is all that tensor_parallel and context_parallel leave."""
    seq_len: int = 1024
    """The tokens of a packed row at most, and so of the longest sample."""
    rows_per_microbatch: int = 4
    """One forward and backward pass holds at most rows_per_microbatch * seq_len tokens, in more rows where these are
    shorter. Lower it when memory runs out; the ranks of tensor_parallel and context_parallel share them."""
    logprob_chunk: int = 1024
    """Tokens whose logits exist at the same time; lower it to save memory with a large vocabulary."""
    dtype: DType = "float32"
    """The type of matrix products; trained weights stay in float32, frozen ones are stored in it."""
    attention: Literal["auto", "sdpa", "flex"] = "auto"
    """`flex` separates packed samples by a compiled kernel, `sdpa` by a mask; `auto` takes flex on a GPU."""
    float8: Float8 = "off"
    """How the layers' matrix products scale their float8 factors, by tensor or by row (trainer/float8.py), on GPUs from
    Ada on; `emulated` rounds as `tensorwise` does, on any device."""
    activation_checkpoint: Recompute = "none"
    """What the backward pass computes again to save memory: `elementwise` results alone, every second matrix product
    too (`selective`), or whole layers (`full`)."""
    router: Literal["train", "freeze"] = "train"
    """Of a mixture of experts: whether its routers learn. There is no auxiliary loss, and no balancing by biases."""
    router_replay: Literal["off", "rollout"] = "off"
    """Of a mixture of experts: whether its trainer sends each token to the experts that the sampler chose (`rollout`),
    and weighs them by its own scores, so that both compute the same function."""
    reduce_gradients: ReduceGradients = "auto"
    """Sum gradients over the ranks with `each` microbatch, or once with the `last` of an update, until which every rank
    holds whole gradients; `auto` is last where these fit into the memory by the estimate."""
    gather_weights: GatherWeights = "auto"
    """Gather the ranks' weights before `each` pass over a layer, or `once` for an update, in which every rank holds
    whole weights in dtype; `auto` is once where these fit."""
    compile: bool = False
    """Compile the model's layers with torch.compile: a slower start, then quicker steps on a GPU."""
    device: Device = "auto"
    """Where the trainer computes; `auto` is a GPU where there is one."""
    gpus: tuple[int, ...] = ()
    """The numbers of its GPUs on its host; empty lets the planner choose them."""
    threads: int = 1
    """Threads of torch in each process."""
    step_timeout_s: float = 600.0
    """Seconds of one call to the trainer, a step or its start; then it counts as hung and is started again."""
    max_restarts: int = 3
    """How often the trainer, and the reference model, are started again without a new step in between; 0 is never."""
    check_memory: bool = True
    """Refuse to start where the estimated memory of all processes does not fit."""
    minibatches: int = 1
    """Parts of a step's samples, with an update for each; above 1 take a loss with `old: trainer` (decoupled)."""
    epochs: int = 1
    """How often a step goes over its samples; above 1 take a loss with `old: trainer` (decoupled)."""
    reference_every: int = 0
    """Steps after which the reference model follows the policy; 0 is never."""
    reference_mix: float = 1.0
    """The share of the policy that the reference model then takes: 1 is a reset (ProRL, arXiv:2505.24864), less at
    every step a moving average (TR-DPO, arXiv:2404.09656: ref = mix * policy + (1 - mix) * ref)."""
    reference_gpus: tuple[int, ...] = ()
    """GPUs of the reference model's own, one for each of procs, on which it scores groups as they end; empty places it
    on the trainer's, where it scores them in the step."""
    critic: CriticConfig = CriticConfig()
    """The critic that some advantages ask for (gae_tokens, gae_turns)."""
    lora: LoraConfig = LoraConfig()
    """Train adapters instead of all weights."""
    mismatch: MismatchConfig = MismatchConfig()
    """What is done when the sampler's log-probabilities differ too much from the trainer's."""
    seed: int = 0
    """Draws random weights, adapters and the critic's head."""

    def __post_init__(self) -> None:
        if self.procs < 1 or self.tensor_parallel < 1 or self.procs % self.tensor_parallel:
            raise ValueError(
                f"trainer.procs {self.procs} must be a multiple of trainer.tensor_parallel {self.tensor_parallel}"
            )
        if self.context_parallel < 1 or self.procs % (self.tensor_parallel * self.context_parallel):
            raise ValueError(
                f"trainer.procs {self.procs} must be a multiple of trainer.tensor_parallel {self.tensor_parallel} "
                f"times trainer.context_parallel {self.context_parallel}"
            )
        if self.expert_parallel < 1 or self.procs % self.expert_parallel:
            raise ValueError(
                f"trainer.procs {self.procs} must be a multiple of trainer.expert_parallel {self.expert_parallel}"
            )
        if self.context_parallel > 1 and self.seq_len % (2 * self.ranks_of_a_row):
            raise ValueError(
                f"trainer.seq_len {self.seq_len} must be a multiple of {2 * self.ranks_of_a_row}, twice "
                "trainer.context_parallel times trainer.tensor_parallel: each rank has two pieces of a row"
            )
        if self.lora.rank and self.tensor_parallel > 1:
            raise ValueError(
                f"trainer.tensor_parallel is {self.tensor_parallel} and trainer.lora.rank {self.lora.rank}: adapters "
                "can't be split like that; set trainer.tensor_parallel to 1, then the ranks shard the weights"
            )
        self._check_float8()
        if self.max_restarts < 0:
            raise ValueError(f"trainer.max_restarts is {self.max_restarts}; give 0 for none, or more")
        if min(self.seq_len, self.rows_per_microbatch, self.logprob_chunk, self.threads) < 1:
            raise ValueError("trainer.seq_len, rows_per_microbatch, logprob_chunk and threads must be at least 1")
        if min(self.minibatches, self.epochs) < 1:
            raise ValueError(f"trainer.minibatches {self.minibatches} and epochs {self.epochs} must be at least 1")
        if self.reference_every < 0 or not 0 < self.reference_mix <= 1:
            raise ValueError(
                f"trainer.reference_every {self.reference_every} must be at least 0, reference_mix "
                f"{self.reference_mix} above 0 and at most 1"
            )
        if self.reference_gpus and len(set(self.reference_gpus)) != self.procs:
            raise ValueError(
                f"trainer.reference_gpus {list(self.reference_gpus)} must be {self.procs} different ones, as many as "
                "trainer.procs; or leave them out, then the reference model is on the trainer's"
            )

    def _check_float8(self) -> None:
        if self.float8 == "off":
            return
        given = {
            f"trainer.lora.rank {self.lora.rank}": self.lora.rank > 0,
            f"trainer.tensor_parallel {self.tensor_parallel}": self.tensor_parallel > 1,
            f"trainer.dtype {self.dtype}": self.dtype != "bfloat16",
            "trainer.compile, which emulation can't have": self.float8 == "emulated" and self.compile,
        }
        for name, wrong in given.items():
            if wrong:
                raise ValueError(
                    f"trainer.float8 is {self.float8!r} with {name}; it needs all weights trained in bfloat16, and "
                    "ranks that share no layer. Change that, or set trainer.float8 to off"
                )

    @property
    def ranks_of_a_row(self) -> int:
        """Processes that compute each row together."""
        return self.tensor_parallel * self.context_parallel

    @property
    def data_ranks(self) -> int:
        """Groups of processes with rows of their own."""
        return self.procs // self.ranks_of_a_row

    @property
    def updates_per_step(self) -> int:
        return self.minibatches * self.epochs

    def fields_to_lower(self) -> str:
        """The settings that take less memory, in a sentence without its full stop: for a trainer that ran out of it."""
        names = ("rows_per_microbatch", "seq_len", "logprob_chunk")
        lower = [f"trainer.{name} ({getattr(self, name)})" for name in names if getattr(self, name) > 1]
        if self.device != "cpu":
            lower.append("generator.engine.gpu_memory_utilization if vLLM has the same GPU")
        order = get_args(Recompute)
        stronger = order[order.index(self.activation_checkpoint) + 1 :]
        recompute = ""
        if stronger:
            recompute = f", set trainer.activation_checkpoint ({self.activation_checkpoint}) to {' or '.join(stronger)}"
        if self.reduce_gradients == "last" and self.procs > self.tensor_parallel:
            recompute += ", set trainer.reduce_gradients (last) to each"
        if self.gather_weights == "once":
            recompute += ", set trainer.gather_weights (once) to each"
        return f"Lower {', '.join(lower)}{recompute}, or shard over more trainer.procs ({self.procs})"
