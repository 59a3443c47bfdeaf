"""Mixtures of experts by torchtitan: computed as transformers computes them, shared by the ranks of expert parallelism.

Axes: B rows, L tokens of a row, D hidden states, T tokens, K choices of a token, E experts, F width of an expert, S
tokens that were sent to this rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentgym.families.architecture import Architecture, Experts
from agentgym.families.family import Router
from agentgym.models.routers import Chosen
from agentgym.trainer import titan
from agentgym.trainer.transformers.names import ExpertNames

T = TypeVar("T")
ROUTER = Router(module="moe.router", scores="all")
_EXPERTS = ".moe.routed_experts.inner_experts."
_NAMES = {"w1_EFD": "gate_proj", "w2_EDF": "down_proj", "w3_EFD": "up_proj"}
"""Of the weights of all experts of a layer, torchtitan's and those of each expert in files."""


class GroupedExperts(titan.GroupedExperts):  # type: ignore[misc]  # torchtitan has no types
    """In the type of the activations; torchtitan's casts to bfloat16 whatever it is given."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.GroupedExperts.Config):  # type: ignore[misc]
        pass

    def forward(self, x_SD: Tensor, num_tokens_per_expert_E: Tensor) -> Tensor:
        w1_EDF, w2_EFD, w3_EDF = (
            (one.to_local() if isinstance(one, DTensor) else one).transpose(-2, -1)
            for one in (self.w1_EFD, self.w2_EDF, self.w3_EFD)
        )
        product = partial(torch._grouped_mm, offs=num_tokens_per_expert_E.cumsum(0, dtype=torch.int32))
        gated_SF: Tensor = nn.functional.silu(product(x_SD, w1_EDF)) * product(x_SD, w3_EDF)
        return product(gated_SF, w2_EFD)


class TopRouter(titan.TokenChoiceTopKRouter):  # type: ignore[misc]
    """Chooses and weighs as transformers' routers do, and returns what they return, for `Routers`."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.TokenChoiceTopKRouter.Config):  # type: ignore[misc]
        pass

    def forward(self, x_BLD: Tensor) -> Chosen:
        scores_TE = self.gate(x_BLD).flatten(0, 1)
        weights_TK, ids_TK = scores_TE.softmax(-1, dtype=torch.float).topk(self.top_k, dim=-1)
        if self.route_norm:
            weights_TK = weights_TK / weights_TK.sum(-1, keepdim=True)
        return scores_TE, weights_TK.to(scores_TE.dtype), ids_TK


class Mixture(titan.MoE):  # type: ignore[misc]
    """Without biases that balance the experts."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.MoE.Config):  # type: ignore[misc]
        pass

    def forward(self, x_BLD: Tensor) -> Tensor:
        _, weights_TK, ids_TK = self.router(x_BLD)
        shape = (*x_BLD.shape[:2], -1)
        ids = ids_TK.flatten()
        counts_E = ids.new_zeros(self.router.num_experts).scatter_add_(0, ids, torch.ones_like(ids))
        routed: Tensor = self.routed_experts(x_BLD, weights_TK.view(shape), ids_TK.view(shape), counts_E)
        return routed


def mixture_config(architecture: Architecture, layer: int, drawn: Mapping[str, Any]) -> Any:
    """Of a layer with experts. drawn: how random weights are, as torchtitan's `param_init`."""
    experts = architecture.experts
    assert experts is not None
    width = architecture.hf_shapes()[f"model.layers.{layer}.mlp.experts.0.gate_proj.weight"][0]
    return Mixture.Config(
        num_experts=experts.num,
        load_balance_coeff=None,
        router=TopRouter.Config(
            num_experts=experts.num,
            top_k=experts.top_k,
            score_func="softmax",
            route_norm=architecture.renormalised,
            gate=titan.Linear.Config(in_features=architecture.dim, out_features=experts.num, param_init=drawn),
        ),
        routed_experts=titan.RoutedExperts.Config(
            inner_experts=GroupedExperts.Config(
                dim=architecture.dim,
                hidden_dim=width,
                num_experts=experts.num,
                param_init=dict.fromkeys(_NAMES, drawn["weight"]),
            ),
            token_dispatcher=titan.AllToAllTokenDispatcher.Config(num_experts=experts.num, top_k=experts.top_k),
        ),
    )


class MixtureNames:
    """Between torchtitan's names and Hugging Face's; the experts of a layer are one weight as `FileNames` has them."""

    joins = True

    def __init__(self, dense: Any, experts: Experts) -> None:
        """dense: of all other weights."""
        self._dense = dense
        self._files = ExpertNames(experts, {part: (part,) for part in _NAMES.values()})

    def to_hf(self, state: Mapping[str, T]) -> dict[str, T]:
        named: dict[str, T] = self._dense.to_hf({name: one for name, one in state.items() if _EXPERTS not in name})
        for name, one in state.items():
            stem, found, last = name.partition(_EXPERTS)
            if found:
                named[f"model.{stem}.mlp.experts.{_NAMES[last]}"] = one
        return named

    def from_hf(self, state: Mapping[str, T]) -> dict[str, T]:
        found: dict[str, T] = self._dense.from_hf({name: one for name, one in state.items() if ".experts." not in name})
        own = {part: name for name, part in _NAMES.items()}
        for name, one in state.items():
            stem, joined, part = name.removeprefix("model.").partition(".mlp.experts.")
            if joined:
                found[f"{stem}{_EXPERTS}{own[part]}"] = one
        return found

    def separated(self, name: str, weight: Tensor) -> Iterator[tuple[str, Tensor]]:
        """As `FileNames`."""
        return self._files.separated(name, weight)

    def joined(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """As `FileNames`."""
        return self._files.joined(weights)
