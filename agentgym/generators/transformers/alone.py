"""Computes each sequence alone, with a cache as the model itself makes it: for what can't be computed in a batch."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from agentgym.generators.transformers.sequence import Sequence
from agentgym.models.routers import Routers


class Computing(Protocol):
    """Computes what sequences lack. Holds what was computed, by one version of the weights."""

    num_computed: int
    """Tokens that went through the model since the start."""

    def compute(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        """The sequences in an order of its own, and float32 logits [B, V] after the last token of each."""

    def leave(self, ended: Collection[Sequence]) -> None:
        """These will not be computed again; next turns may continue them."""

    def set_model(self, model: nn.Module, routers: Routers | None) -> None:
        """New weights: everything has to be computed again."""


class Alone:
    """Implements `Computing`. A model without a cache computes all of a sequence for each token."""

    def __init__(self, model: nn.Module, routers: Routers | None) -> None:
        self.num_computed = 0
        self._last_only = last_only(model)
        self.set_model(model, routers)

    def compute(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        return list(sequences), torch.stack([self._logits(sequence) for sequence in sequences])

    def leave(self, ended: Collection[Sequence]) -> None:
        pass

    def set_model(self, model: nn.Module, routers: Routers | None) -> None:
        self._model, self._routers = model, routers

    def _logits(self, sequence: Sequence) -> Tensor:
        new = sequence.tokens[sequence.computed :]
        if self._routers is not None:
            self._routers.record()
        device = next(self._model.parameters()).device
        output = self._model(
            input_ids=torch.tensor([new], device=device),
            past_key_values=sequence.cache,
            use_cache=True,
            **self._last_only,
        )
        self.num_computed += len(new)
        if self._routers is not None:
            sequence.add_routes(self._routers.taken().to(torch.uint16).cpu())
        sequence.cache = getattr(output, "past_key_values", None)
        sequence.computed = 0 if sequence.cache is None else len(sequence.tokens)
        logits: Tensor = output.logits[0, -1].float()
        return logits


def last_only(model: nn.Module) -> dict[str, Any]:
    """The argument by which a model computes the last logits alone, if it has one."""
    return {"logits_to_keep": 1} if "logits_to_keep" in inspect.signature(model.forward).parameters else {}
