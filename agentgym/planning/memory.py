"""The memory of a trainer and of a generator, estimated from the architecture and the settings. All in GiB.

What was measured on GPUs, and how near the estimates come: docs/placement.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from agentgym.families.architecture import Architecture
from agentgym.families.quantized import BLOCK, BLOCK_BYTES, Quantize, quantized_shapes
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.select import VllmEngineConfig
from agentgym.planning.machine import GIB
from agentgym.trainer.config import LoraConfig, TrainerConfig

Parts: TypeAlias = dict[str, float]
"""GiB by what it is for."""

BYTES = {"float32": 4, "bfloat16": 2}
CONTEXT_GIB = 1.25  # of CUDA, NCCL, libraries and kernels, in each process
READER_GIB = 0.5  # of CUDA, in a process that maps another GPU's memory there
PROCESS_GIB = 0.6  # of Python with torch, in the host's memory
GRAPHS_GIB = 1.0  # vLLM's captured CUDA graphs
BATCHED_TOKENS = 8192  # that vLLM computes in one step at most, by its own default
STAGED_SPARE_GIB = 1.0  # of a GPU, which stay free beside what vLLM merges before an update
STAGED_OTHERS_GIB = 4.0  # of a GPU, in use by other processes, from which on nothing is merged before
MADE_BYTES = 6  # of a number of a matrix that is dequantized, beside the result
HEAD_CHUNKS = 3  # of logits that the head has at a time
WITH_GRADIENTS = 2.6  # times what a layer keeps, while all of it is computed again and goes backward


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerTokens:
    """Numbers that are kept of one token in one layer until its backward pass, by what is computed again."""

    none: int
    elementwise: int
    selective: int
    full: int

    @classmethod
    def of(cls, model: Architecture, *, compiled: bool) -> LayerTokens:
        """The activations of a layer. Without recomputation: the inputs and outputs of both norms, queries, keys and
        values as they are multiplied, normalised and rotated, the output of attention, and three times the feed-forward
        width. elementwise keeps the layer's input, matrix products and attention's output, selective every second
        product of these, full the input alone. What is not compiled keeps one more result of an elementwise operation.
        """
        width, kv_width = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        products = width + 2 * kv_width
        changed = (width + kv_width) * (2 if model.qk_norm else 1)
        every = 4 * model.dim + products + changed + width + 3 * model.ffn_dim
        some = model.dim + products + width + model.ffn_dim
        return cls(
            none=every + (0 if compiled else model.ffn_dim),
            elementwise=some + model.dim + model.ffn_dim + (0 if compiled else model.dim),
            selective=some + (0 if compiled else model.dim),
            full=model.dim,
        )


def trainer_parts(
    model: Architecture, trainer: TrainerConfig, *, on_gpu: bool, batch_tokens: int, quantize: Quantize = "none"
) -> Parts:
    """Memory of one trainer process. batch_tokens: of a whole step; a microbatch holds at most as many.

    The optimizer's state and the float32 weights are split over all ranks that shard; bfloat16 copies of what is
    computed just now are gathered. With LoRA only adapters are trained, and the frozen weights are of trainer.dtype.
    Gradients that are reduced with the last microbatch are whole on each rank until then, and so are weights that are
    gathered once. quantize: how the frozen matrices are stored; one at a time is made of that.
    """
    size, parameters = BYTES[trainer.dtype], model.num_parameters / GIB
    shards = sharding(trainer)
    tensor: float = trainer.tensor_parallel
    kept = LayerTokens.of(model, compiled=trainer.compile)
    per_layer: int = getattr(kept, trainer.activation_checkpoint)
    rows_tokens = min(trainer.rows_per_microbatch * trainer.seq_len, -(-batch_tokens // trainer.data_ranks))
    tokens = rows_tokens / trainer.ranks_of_a_row
    head = head_gib(model, trainer, tokens * tensor, trained=not trainer.lora.rank)
    backward = {"none": 0.0, "full": WITH_GRADIENTS}.get(trainer.activation_checkpoint, 1.0)
    again = backward * kept.none * tokens * size / GIB
    adapters = adapter_parameters(model, trainer.lora) / GIB
    trained, frozen = (adapters, parameters) if trainer.lora.rank else (parameters, 0.0)
    quantized = quantized_shapes(model, quantize).values()
    saved = sum(math.prod(shape) for shape in quantized) / GIB * (size - BLOCK_BYTES / BLOCK)
    parts = {
        "weights": (4 * trained + size * frozen - saved) / shards,
        "gradients": 4 * trained / shards,
        "optimizer": 8 * trained / shards,
        "activations": per_layer * model.num_layers * tokens * size / GIB,
        "head": max(head, again),  # the layer that is computed again comes after the head is done
    }
    tensor /= held_share(model, trainer.expert_parallel)
    if is_sharded(trainer):
        layers, embedding = 2 * layer_parameters(model) / GIB, model.vocab_size * model.dim / GIB
        whole, spared = parameters, saved
        if trainer.gather_weights == "each":
            whole, spared = layers + embedding, 2 * saved / model.num_layers
        parts["gathered"] = (whole * size - spared) / tensor
    if quantized:  # float32 and indices of its bytes, then its type
        parts["dequantized"] = max(map(math.prod, quantized)) * (MADE_BYTES + size) / GIB
    if trainer.context_parallel > 1:  # keys and values of whole rows, and their gradients
        parts["context"] = 4 * model.num_kv_heads * model.head_dim * rows_tokens * size / tensor / GIB
    if trainer.reduce_gradients == "last" and trainer.procs > trainer.tensor_parallel:
        parts["unreduced"] = 4 * trained / tensor
    return parts | {"process": CONTEXT_GIB if on_gpu else PROCESS_GIB}


def reference_parts(model: Architecture, trainer: TrainerConfig, *, on_gpu: bool, batch_tokens: int) -> Parts:
    """One process of the reference model: as the trainer's, without gradients and what only training keeps."""
    trainer = replace(trainer, lora=LoraConfig(), gather_weights="each")
    of_trainer = trainer_parts(model, trainer, on_gpu=on_gpu, batch_tokens=batch_tokens)
    kept = LayerTokens.of(model, compiled=trainer.compile)
    tokens = min(trainer.rows_per_microbatch * trainer.seq_len, batch_tokens) / trainer.ranks_of_a_row
    working = kept.none * tokens * BYTES[trainer.dtype] / GIB
    return {
        name: size for name, size in of_trainer.items() if name in ("weights", "gathered", "context", "process")
    } | {"activations": working, "head": head_gib(model, trainer, tokens, trained=False)}


def head_gib(model: Architecture, trainer: TrainerConfig, tokens: float, *, trained: bool = True) -> float:
    """Memory of the log-probability head: chunks of float32 logits, and its weight's gradient.

    That is summed in float32 while there are logits, and then in the computation's type; tied weights have it of the
    embedding, too.
    """
    vocabulary = model.vocab_size / trainer.tensor_parallel
    logits = HEAD_CHUNKS * min(trainer.logprob_chunk, tokens) * vocabulary * 4
    if not trained:
        return logits / GIB
    weight = vocabulary * model.dim
    after = weight * BYTES[trainer.dtype] * (2 if model.tied else 1)
    return (4 * weight + max(logits, after)) / GIB


def adapter_parameters(model: Architecture, lora: LoraConfig) -> int:
    """0 where LoRA is off."""
    return sum(lora.rank * sum(shape) for shape in _adapted(model, lora))


def merged_gib(model: Architecture, generator: GeneratorConfig, lora: LoraConfig) -> float:
    """What is merged for an update of vLLM, by each GPU of a replica for itself."""
    return sum(math.prod(shape) for shape in _adapted(model, lora)) * BYTES[generator.dtype] / GIB


def _adapted(model: Architecture, lora: LoraConfig) -> list[tuple[int, ...]]:
    """The shapes of the matrices with adapters."""
    matrices = (shape for name, shape in model.hf_shapes().items() if name.split(".")[-2] in lora.targets)
    return [shape for shape in matrices if len(shape) == 2]


def layer_parameters(model: Architecture) -> float:
    embeddings = model.vocab_size * model.dim * (1 if model.tied else 2)
    return (model.num_parameters - embeddings) / model.num_layers


def held_share(model: Architecture, expert_parallel: int) -> float:
    """The share of the weights that a rank has when what it computes is gathered: others' experts are not."""
    if expert_parallel == 1:
        return 1.0
    experts = sum(math.prod(shape) for name, shape in model.hf_shapes().items() if ".experts." in name)
    return 1.0 - experts / model.num_parameters * (1.0 - 1.0 / expert_parallel)


def is_sharded(trainer: TrainerConfig) -> bool:
    """Whether FSDP wraps the model (with one rank too, for the cast)."""
    return trainer.dtype != "float32" or trainer.procs > 1


def sharding(trainer: TrainerConfig) -> int:
    """Over how many ranks the weights are split."""
    shard = trainer.data_ranks if trainer.data_parallel_shard < 0 else trainer.data_parallel_shard
    return max(1, shard) * trainer.ranks_of_a_row


def kv_token_gib(model: Architecture, generator: GeneratorConfig) -> float:
    """Keys and values of one token, on each GPU of a replica."""
    engine, size = generator.engine, float(BYTES[generator.dtype])
    if isinstance(engine, VllmEngineConfig) and str(engine.options.get("kv_cache_dtype", "")).startswith("fp8"):
        size = 1.0
    heads = max(1.0, model.num_kv_heads / engine.gpus_per_replica)  # fewer heads than GPUs are repeated
    return 2 * model.num_layers * heads * model.head_dim * size / GIB


def weight_gib(model: Architecture, generator: GeneratorConfig) -> float:
    """A generator's weights, on each GPU of a replica."""
    engine, size = generator.engine, BYTES[generator.dtype]
    if isinstance(engine, VllmEngineConfig) and "fp8" in str(engine.options.get("quantization", "")):
        size = 1
    return model.num_parameters * size / engine.gpus_per_replica / GIB


def vllm_own_gib(model: Architecture, generator: GeneratorConfig) -> float:
    """What vLLM takes of its share besides weights and cache: one step's activations, the logits, graphs."""
    engine = generator.engine
    size = BYTES[generator.dtype]
    step = BATCHED_TOKENS * (4 * model.dim + 3 * model.ffn_dim / engine.gpus_per_replica) * size
    logits = 3 * generator.max_batch * model.vocab_size * 4
    eager = isinstance(engine, VllmEngineConfig) and engine.enforce_eager
    return (step + logits) / GIB + (0.0 if eager else GRAPHS_GIB)


def vllm_parts(model: Architecture, generator: GeneratorConfig, memory_gib: float) -> Parts:
    """Memory of vLLM on each GPU of a replica. The cache gets what is left of gpu_memory_utilization; below 0 it is too
    little.

    Its process's context comes on top of that share: vLLM starts to count once it has one.
    """
    engine = generator.engine
    assert isinstance(engine, VllmEngineConfig)
    taken = engine.gpu_memory_utilization * memory_gib
    parts = {"weights": weight_gib(model, generator), "engine": vllm_own_gib(model, generator)}
    return parts | {"cache": taken - sum(parts.values()), "process": CONTEXT_GIB}


def engine_parts(model: Architecture, generator: GeneratorConfig, *, on_gpu: bool) -> Parts:
    """A replica of our own engines: a cache for max_batch sequences, and the next weights beside the current."""
    rows = generator.max_batch * generator.max_model_len
    weights = weight_gib(model, generator)
    cache = rows * kv_token_gib(model, generator)
    return {"weights": 2 * weights, "cache": cache, "process": CONTEXT_GIB if on_gpu else PROCESS_GIB}


def version_gib(model: Architecture, generator: GeneratorConfig, trainer: TrainerConfig | None) -> float:
    """One version in the weight store: with LoRA the adapters, which are float32."""
    if trainer is not None and trainer.lora.rank:
        return 4 * adapter_parameters(model, trainer.lora) / GIB
    return model.num_parameters * BYTES[generator.dtype] / GIB
