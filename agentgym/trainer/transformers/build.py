"""Builds a model of transformers, sharded by FSDP2 over the ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.quantized import quantized_shapes
from agentgym.families.registry import family_of, read_config
from agentgym.models.routers import Routers, freeze, routers_of
from agentgym.trainer.attention import additive_mask
from agentgym.trainer.config import DType, TrainerConfig
from agentgym.trainer.head import scoring_of
from agentgym.trainer.lora import store_frozen_as
from agentgym.trainer.parallel import Ranks, expected_warnings_off
from agentgym.trainer.recompute import recompute
from agentgym.trainer.setup import TrainerSetup
from agentgym.trainer.transformers.adapters import add_adapters, draw_adapters, quantize_matrices
from agentgym.trainer.transformers.model import Decoder, build_decoder, fill_buffers
from agentgym.trainer.transformers.names import ExpertNames, FileNames, QuantizedNames


def build_by_transformers(
    architecture: Architecture, setup: TrainerSetup, ranks: Ranks, *, flex: bool
) -> tuple[Decoder, FileNames, Routers | None]:
    """Its weights are what was in memory, and adapters as they begin: load weights over them. Routers: that replay.

    Raises UserError for a model that can't be computed so.
    """
    trainer, family = setup.trainer, family_of(architecture)
    config = read_config(Path(setup.model_path))
    decoder = build_decoder(config, architecture, family, scoring_of(setup, architecture.head), flex=flex)
    if family.router is not None and architecture.experts is not None and trainer.router == "freeze":
        freeze(decoder.model, architecture, family.router)
    routers = routers_of(decoder.model, Path(setup.model_path)) if trainer.router_replay == "rollout" else None
    names = names_of(decoder, architecture)
    if quantized := quantized_shapes(architecture, setup.quantize):
        quantize_matrices(decoder, quantized)
        names = QuantizedNames(quantized, ranks.device)
    if trainer.lora.rank:
        add_adapters(decoder, trainer.lora)
    store_frozen_as(decoder, trainer.dtype)
    recompute(decoder.model, trainer, setup.folder)
    if trainer.compile:
        for layer in decoder.layers:
            layer.compile()
    if ranks.sharded:
        _shard(decoder, trainer, ranks)
    decoder.to_empty(device=ranks.device)
    with expected_warnings_off():
        fill_buffers(decoder)
        draw_adapters(decoder, trainer.seed)
    decoder.eval()  # gradients come all the same; dropout, which some configs have, would be another policy
    return decoder, names, routers


def names_of(decoder: Decoder, architecture: Architecture) -> FileNames:
    """Raises UserError for a model whose weights have other names in files, and are not those of experts."""
    names, stored = FileNames(), set(architecture.hf_shapes())
    weights = names.to_hf(decoder.state_dict())
    if set(weights) == stored:
        return names
    names = ExpertNames(architecture.experts) if architecture.experts else names
    separated = {part for name, weight in weights.items() for part, _ in names.separated(name, weight)}
    if different := sorted(separated ^ stored):
        raise UserError(
            f"transformers has other names for weights of {architecture.model_type} than its files, as {different[0]}, "
            "which the trainer does not convert"
        )
    return names


def _shard(decoder: Decoder, trainer: TrainerConfig, ranks: Ranks) -> None:
    """Each layer, then what is left: embedding, last norm and head, which may be one weight."""
    dims = ranks.dims
    mesh = dims.get_mesh(["dp_replicate", "fsdp"] if dims.dp_replicate_enabled else ["fsdp"])
    policy = MixedPrecisionPolicy(param_dtype=getattr(torch, trainer.dtype), reduce_dtype=torch.float32)
    for module in (*decoder.layers, decoder):
        sharded = fully_shard(module, mesh=mesh, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)  # each token has its weight in the whole batch


def masks_by_family(architecture: Architecture, dtype: DType) -> Callable[[Tensor], object]:
    """None where transformers makes masks of positions that begin again at 0."""
    if family_of(architecture).masks == "positions":
        return lambda positions_RL: None
    kinds, window = architecture.layer_kinds, architecture.window
    return lambda positions_RL: given_masks(positions_RL, kinds, window, getattr(torch, dtype))


def given_masks(positions_RL: Tensor, kinds: tuple[str, ...], window: int | None, dtype: torch.dtype) -> object:
    """What is added to the scores of each kind of layer, [R, 1, L, L], for families that make no masks of positions."""
    starts_RL = positions_RL == 0
    document_RL = starts_RL.cumsum(1)
    places_L = torch.arange(positions_RL.shape[1], device=positions_RL.device)
    back_LL = places_L[:, None] - places_L[None]
    allowed_RLL = (document_RL[:, :, None] == document_RL[:, None, :]) & (back_LL >= 0)
    masks: dict[str, Tensor] = {}
    for kind in kinds:
        near = window if kind == "sliding_attention" and window else len(places_L)
        masks[kind] = additive_mask(allowed_RLL & (back_LL < near), dtype)
    return masks
