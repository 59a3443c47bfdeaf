"""Builds the model, sharded over the ranks, with its optimizer and learning-rate schedule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.models.routers import Routers, freeze
from agentgym.trainer import titan
from agentgym.trainer.attention import packed_mask
from agentgym.trainer.compile_cache import keep_compiled
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.context import gather_context
from agentgym.trainer.critic import Critic
from agentgym.trainer.dynamic import of_any_rows
from agentgym.trainer.float8 import with_float8
from agentgym.trainer.lora import store_frozen_as, with_adapters
from agentgym.trainer.mixture import ROUTER, MixtureNames
from agentgym.trainer.model import HuggingFaceNames, titan_config
from agentgym.trainer.parallel import Ranks, expected_warnings_off
from agentgym.trainer.recompute import recompute
from agentgym.trainer.schedule import CurrentRate, RateSchedule
from agentgym.trainer.setup import TrainerSetup
from agentgym.trainer.transformers.build import build_by_transformers, masks_by_family

_FLEX_HEAD_DIM = 16  # the narrowest heads that flex attention's kernels compute


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedModel:
    """adapter: between the engine's names of weights and Hugging Face's. rate: what the schedule follows. masks: what
    the model wants for rows of these positions, [R, L]. routers: that get the routes of a batch.
    """

    model: nn.Module
    adapter: Any
    optimizers: Any
    schedule: Any
    rate: CurrentRate
    flex: bool
    masks: Callable[[Tensor], object]
    vocab_size: int
    critic: Critic | None = None
    routers: Routers | None = None


def uses_flex(trainer: TrainerConfig, architecture: Architecture, *, on_cpu: bool) -> bool:
    """Whether packed rows go through flex attention. Raises UserError where it is asked for and can't compute."""
    narrow = architecture.head_dim < _FLEX_HEAD_DIM
    if trainer.attention != "flex":
        return trainer.attention == "auto" and not on_cpu and not narrow
    if on_cpu:
        raise UserError("trainer.attention is 'flex', which can't train on a CPU; use 'auto' or 'sdpa'")
    if narrow:
        raise UserError(
            f"trainer.attention is 'flex', which needs heads of at least {_FLEX_HEAD_DIM} dimensions; the model's have "
            f"{architecture.head_dim}. Use 'auto' or 'sdpa'"
        )
    return True


def load_libraries(trainer: TrainerConfig) -> None:
    """What takes seconds to load, beside this module, and no memory of a GPU."""
    if trainer.compile:
        keep_compiled()
        titan.load_compiler()


def build(architecture: Architecture, setup: TrainerSetup, ranks: Ranks) -> TrainedModel:
    """Its weights are random, from trainer.seed; load others over them."""
    trainer, optimizer = setup.trainer, setup.optimizer
    load_libraries(trainer)
    if trainer.seq_len > architecture.max_positions:
        raise UserError(f"trainer.seq_len is {trainer.seq_len}; the model has {architecture.max_positions} positions")
    if trainer.seq_len % trainer.tensor_parallel:
        raise UserError(
            f"trainer.seq_len {trainer.seq_len} must be a multiple of trainer.tensor_parallel "
            f"{trainer.tensor_parallel}: the ranks share each row's tokens between layers"
        )
    on_cpu = ranks.device.type == "cpu"
    flex = uses_flex(trainer, architecture, on_cpu=on_cpu)
    if flex:
        titan.load_compiler()
    routers = None
    if trainer.engine == "transformers":
        model, adapter, routers = build_by_transformers(architecture, setup, ranks, flex=flex)
        masks = masks_by_family(architecture, trainer.dtype)
    else:
        model, adapter, routers = _build_by_titan(architecture, setup, ranks, flex=flex)
        masks = model.get_attention_masks if flex else partial(packed_mask, dtype=getattr(torch, trainer.dtype))
    if on_cpu:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo can't average in a reduction
    if trainer.compile:
        of_any_rows(model.layers.children())
    optimizers = _optimizers(model, optimizer, "fused" if not on_cpu or not ranks.sharded else "foreach")
    rate = CurrentRate(RateSchedule.of(optimizer, setup.total_steps))
    return TrainedModel(
        model=model,
        adapter=adapter,
        optimizers=optimizers,
        schedule=titan.LRSchedulersContainer(optimizers, rate),
        rate=rate,
        flex=flex,
        masks=masks,
        vocab_size=architecture.vocab_size,
        critic=Critic(architecture.dim, trainer.critic, ranks) if setup.critic else None,
        routers=routers,
    )


def _build_by_titan(
    architecture: Architecture, setup: TrainerSetup, ranks: Ranks, *, flex: bool
) -> tuple[Any, Any, Routers | None]:
    trainer, routers = setup.trainer, None
    config = titan_config(architecture, setup, flex=flex)
    sequence, experts = ranks.parallelism.enable_sequence_parallel, trainer.expert_parallel > 1
    titan.set_qwen3_sharding_config(config, enable_sp=sequence, enable_ep=experts)
    if trainer.lora.rank:
        config = with_adapters(config, trainer.lora)
    if trainer.float8 != "off":
        config = with_float8(config, trainer)
    torch.manual_seed(trainer.seed)
    with torch.device("meta"):
        model = config.build()
    names: Any = HuggingFaceNames(config)
    if architecture.experts is not None:
        names = MixtureNames(names, architecture.experts)
        if trainer.router == "freeze":
            freeze(model, architecture, ROUTER)
        if trainer.router_replay == "rollout":
            routers = Routers(model, architecture, ROUTER)
    store_frozen_as(model, trainer.dtype)
    _shard(model, trainer, ranks, setup.folder)
    model.to_empty(device=ranks.device)
    with torch.no_grad(), expected_warnings_off():
        model.init_states()
    model.train()
    return model, names, routers


def _shard(model: nn.Module, trainer: TrainerConfig, ranks: Ranks, folder: str) -> None:
    """Splits the model over the ranks, in torchtitan's order: rows, matrices, recomputation, compiling, FSDP."""
    dims = ranks.dims
    if dims.cp_enabled:
        blocks: Any = model.layers
        gather_context([block.attention.inner_attention for block in blocks.values()], dims.get_mesh("cp"))
    if dims.tp_enabled or dims.ep_enabled:
        model.parallelize(dims)  # type: ignore[operator]
    recompute(model, trainer, folder)
    if trainer.compile:
        titan.apply_compile(model, compile_config=titan.CompileConfig(enable=True), parallel_dims=dims)
    if not ranks.sharded:
        return
    titan.apply_fsdp_to_decoder(
        model,
        dims.get_mesh(["dp_replicate", "fsdp"] if dims.dp_replicate_enabled else ["fsdp"]),
        param_dtype=getattr(torch, trainer.dtype),
        reduce_dtype=torch.float32,
        pp_enabled=False,
        ep_degree=dims.ep,
        edp_mesh=dims.get_mesh(["efsdp"]) if dims.ep_enabled else None,
    )


def _optimizers(model: nn.Module, optimizer: OptimizerConfig, implementation: str) -> Any:
    config = titan.default_adamw(
        lr=optimizer.lr,
        betas=(optimizer.beta1, optimizer.beta2),
        eps=optimizer.eps,
        weight_decay=optimizer.weight_decay,
    )
    config.implementation = implementation
    return config.build(model_parts=[model])
