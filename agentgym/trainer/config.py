"""The trainer's settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from agentgym.errors import nearest
from agentgym.trainer.mismatch_config import MismatchConfig

Device: TypeAlias = Literal["auto", "cpu", "cuda"]
DType: TypeAlias = Literal["float32", "bfloat16"]
Recompute: TypeAlias = Literal["none", "elementwise", "selective", "full"]
ReduceGradients: TypeAlias = Literal["auto", "each", "last"]
GatherWeights: TypeAlias = Literal["auto", "each", "once"]
Float8: TypeAlias = Literal["off", "tensorwise", "rowwise", "rowwise_with_gw_hp", "emulated"]
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""Every matrix of a layer, by its Hugging Face name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """AdamW."""

    lr: float = 1e-6
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 5
    decay_ratio: float = 0.0  # share of the steps at the end in which the rate falls
    max_grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if self.lr < 0 or self.max_grad_norm <= 0:
            raise ValueError(
                f"optimizer: lr {self.lr} must be at least 0 and max_grad_norm {self.max_grad_norm} above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """Settings of the head that an advantage with a critic asks for. epochs: its steps for each of the policy's."""

    lr: float = 1e-2
    epochs: int = 4

    def __post_init__(self) -> None:
        if self.lr <= 0 or self.epochs < 1:
            raise ValueError(f"critic: lr {self.lr} must be above 0 and epochs {self.epochs} at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraConfig:
    """Adapters beside frozen weights: y = W x + alpha / rank * B A x. rank: of A and B; 0 trains all weights instead.

    targets: the matrices of each layer that get adapters. Source: arXiv:2106.09685; that alpha need not change with the
    rank, and that all matrices should be targets: "LoRA Without Regret", Schulman and others, 2025.
    """

    rank: int = 0
    alpha: float = 32.0
    targets: tuple[str, ...] = LORA_TARGETS

    def __post_init__(self) -> None:
        if self.rank < 0 or not 0 < self.alpha < math.inf:
            raise ValueError(f"lora: rank {self.rank} must be at least 0 and alpha {self.alpha:g} above 0 and finite")
        for name in self.targets:
            if name not in LORA_TARGETS:
                hint = nearest(name, LORA_TARGETS)
                raise ValueError(f"lora.targets has {name!r}, which is not a matrix of a layer.{hint}")
        if not self.targets:
            raise ValueError("lora.targets is empty; name at least one, or set trainer.lora.rank to 0")

    @property
    def scale(self) -> float:
        """What B A is multiplied by."""
        return self.alpha / self.rank


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerConfig:
    """seq_len: the longest packed row, and so the longest sample. rows_per_microbatch: one forward and backward
    holds at most rows_per_microbatch * seq_len tokens, in more rows where these are shorter; the ranks of
    tensor_parallel and of context_parallel share them, the latter by tokens. gpus: empty,
    they are planned. max_restarts: of the trainer, and of the reference model, without a new step in between; 0 is
    none. check_memory: refuse to start where the estimate of what everybody takes does not fit.

    minibatches, epochs: a step's samples are split into so many parts with an update for each, so many times over; the
    learning rate changes once a step. Take a loss with `old: trainer` (decoupled, tis, mis) for more than one.
    reference_every: steps after which the reference model follows the policy; 0 is never. reference_mix: the share of
    the policy it then takes: 1 is a reset (ProRL, arXiv:2505.24864), less at every step a moving average (TR-DPO,
    arXiv:2404.09656: ref = mix * policy + (1 - mix) * ref). reference_gpus: its own, one for each of procs, on which it
    scores groups as they end; empty is the trainer's, where it scores them in the step.

    activation_checkpoint: what the backward pass computes again: elementwise results alone, every second matrix product
    too (selective), or whole layers. float8: how the layers' matrix products scale their float8 factors; see
    trainer/float8.py. reduce_gradients: over the ranks, with each microbatch, or once with an update's last, until
    which every rank holds whole gradients; auto is last where these fit into the memory, by the estimate.
    gather_weights: of the ranks, and in dtype, before each pass over a layer, or once for an update, in which every
    rank holds whole weights in dtype; auto is once where these fit.
    """

    procs: int = 1
    tensor_parallel: int = 1
    context_parallel: int = 1
    data_parallel_shard: int = -1  # -1: what is left
    seq_len: int = 1024
    rows_per_microbatch: int = 4
    logprob_chunk: int = 1024
    dtype: DType = "float32"  # of matrix products; weights stay float32, except frozen ones
    attention: Literal["auto", "sdpa", "flex"] = "auto"
    float8: Float8 = "off"
    activation_checkpoint: Recompute = "none"
    reduce_gradients: ReduceGradients = "auto"
    gather_weights: GatherWeights = "auto"
    compile: bool = False
    device: Device = "auto"
    gpus: tuple[int, ...] = ()
    threads: int = 1  # of torch, per process
    step_timeout_s: float = 600.0
    max_restarts: int = 3
    check_memory: bool = True
    minibatches: int = 1
    epochs: int = 1
    reference_every: int = 0
    reference_mix: float = 1.0
    reference_gpus: tuple[int, ...] = ()
    critic: CriticConfig = CriticConfig()
    lora: LoraConfig = LoraConfig()
    mismatch: MismatchConfig = MismatchConfig()
    seed: int = 0

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
