"""The routers of a mixture of experts in a module of transformers: what they chose, and choices given to them.

Given choices are replayed as ids alone: the weights of the experts are computed of the router's own scores, so that it
is trained as ever. Axes: T tokens of one pass, E experts, K choices of a token.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.family import Router
from agentgym.families.registry import known_router, read_architecture

Chosen: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""What a router of transformers returns: scores before the softmax [T, E], weights [T, K] and ids [T, K] of experts."""


class Routers:
    """All routers of a model, in the order of its layers. Give `routes` before a forward pass.

    They stay until others are given: where activations are computed again in the backward pass, they see the same.
    """

    def __init__(self, body: nn.Module, architecture: Architecture, router: Router) -> None:
        """body: the model without its head; it has `layers`.

        Raises UserError where a layer with experts has no router of that name.
        """
        assert architecture.experts is not None
        self.routes: Tensor | None = None
        self._top_k = architecture.experts.top_k
        self._scores = router.scores
        if router.scores == "all" and architecture.renormalised:
            self._scores = "renormalised"
        self._recorded: list[Tensor | None] | None = None
        for index, number in enumerate(architecture.experts.layers):
            try:
                module = body.get_submodule(f"layers.{number}.{router.module}")
            except AttributeError as error:
                raise UserError(
                    f"layer {number} of this {architecture.model_type} has no router {router.module!r}, so choices of "
                    "experts can't be replayed: set trainer.router_replay to off"
                ) from error
            module.register_forward_hook(self._hook(index))
        self.width = len(architecture.experts.layers) * self._top_k

    def record(self) -> None:
        """Keep the choices of the passes from now on, one after the other."""
        self._recorded = [None] * (self.width // self._top_k)

    def taken(self) -> Tensor:
        """The choices since `record`, [T, width]; it ends there."""
        found, self._recorded = self._recorded, None
        assert found is not None and all(one is not None for one in found), "a router was not called"
        return torch.cat([one for one in found if one is not None], dim=1)

    def _hook(self, index: int):  # type: ignore[no-untyped-def]  # torch's own type of a hook is wider
        chosen_at = slice(index * self._top_k, (index + 1) * self._top_k)

        def after(module: nn.Module, arguments: tuple[object, ...], result: Chosen) -> Chosen:
            scores_TE, weights_TK, ids_TK = result
            if self.routes is not None:
                given_TK = self.routes.reshape(-1, self.width)[:, chosen_at].long()
                ids_TK = torch.where(given_TK < 0, ids_TK, given_TK)
                weights_TK = chosen_weights(scores_TE, ids_TK, self._scores).to(weights_TK.dtype)
            if self._recorded is not None:
                before, now = self._recorded[index], ids_TK.detach().to(torch.int32)
                self._recorded[index] = now if before is None else torch.cat([before, now])
            return scores_TE, weights_TK, ids_TK

        return after


def routers_of(body: nn.Module, folder: Path) -> Routers:
    """The routers of the model in a folder. body: see `Routers`. Raises UserError where it has none that are known."""
    architecture = read_architecture(folder)
    return Routers(body, architecture, known_router(architecture))


def chosen_weights(scores_TE: Tensor, ids_TK: Tensor, kind: str) -> Tensor:
    """The weights of chosen experts, [T, K], by the operations of transformers' routers; see `Router.scores`."""
    if kind == "chosen":
        return scores_TE.gather(1, ids_TK).softmax(dim=1, dtype=scores_TE.dtype)
    weights_TK = scores_TE.softmax(dim=-1, dtype=torch.float).gather(1, ids_TK)
    return weights_TK / weights_TK.sum(dim=-1, keepdim=True) if kind == "renormalised" else weights_TK


def freeze(body: nn.Module, architecture: Architecture, router: Router) -> None:
    """Leaves the routers as they are: their weights get no gradient."""
    assert architecture.experts is not None
    for number in architecture.experts.layers:
        body.get_submodule(f"layers.{number}.{router.module}").requires_grad_(False)
