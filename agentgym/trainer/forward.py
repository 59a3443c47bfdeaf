"""The model over packed rows: what it gives the tokens that are asked for.

Axes: R rows, L tokens of a row, N wanted entries, D hidden states.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainer.build import TrainedModel
from agentgym.trainer.config import DType
from agentgym.trainer.microbatches import Microbatch
from agentgym.trainer.parallel import Ranks


class Forward:
    """One forward pass at a time, by all ranks that share rows; each gets what all of them have."""

    def __init__(self, built: TrainedModel, ranks: Ranks, dtype: DType) -> None:
        """dtype: of matrix products."""
        self._model, self._masks, self._routers = built.model, built.masks, built.routers
        self._flex = built.flex
        self._device, self._context = ranks.device, ranks.context
        self._dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        self._here_N: Tensor | None = None  # which wanted entries this rank has, where it has a part of each row

    def __call__(self, part: Microbatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities and entropies, [N] each, of the labels at the wanted entries, in row order."""
        # not views: the model would be compiled for their places in the batch
        token_ids_RL, positions_RL = part.token_ids.clone(), part.positions.clone()
        mask = self._mask(positions_RL)
        self._here_N = part.here
        if self._context.size > 1:
            own_Q = self._context.own(positions_RL.shape[1], self._device)
            token_ids_RL, positions_RL = token_ids_RL[:, own_Q], positions_RL[:, own_Q]
        if self._routers is not None:
            self._routers.routes = part.routes
        self._model.lm_head.targets = (part.entries, part.labels)  # type: ignore[union-attr]
        scored_2N = self._model(token_ids_RL, positions=positions_RL, attention_masks=mask)
        if self._here_N is not None:
            scored_2N = self._context.of_all(scored_2N, self._here_N)
        return scored_2N[0], scored_2N[1]

    @property
    def hidden(self) -> Tensor:
        """The hidden states of the last call at its wanted entries: [N, D], without a gradient."""
        own: Tensor = self._model.lm_head.hidden  # type: ignore[union-attr,assignment]
        return own if self._here_N is None else self._context.rows_of_all(own, self._here_N)

    def _mask(self, positions_RL: Tensor) -> object:
        if self._context.size > 1:
            return self._context.mask(positions_RL, flex=self._flex, dtype=self._dtype)
        return self._masks(positions_RL)
