"""Metrics of one step, added up over microbatches and ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.rl.losses import TokenLoss
from agentgym.trainer.parallel import Ranks

MAXIMA = ("train/mismatch_max", "train/mismatch_fresh_max")


class Totals:
    """Sums stay on the device until the end, so that no microbatch waits for the previous one."""

    def __init__(self, device: torch.device) -> None:
        self._loss = torch.zeros((), device=device)
        self._sums: dict[str, Tensor] = {}
        self._maxima = {name: torch.full((), -1.0, device=device) for name in MAXIMA}

    def add(self, loss: Tensor, result: TokenLoss) -> None:
        """loss: this microbatch's share of the batch's loss."""
        self._loss += loss
        for name, values_N in result.means.items():
            self._sums[name] = self._sums.get(name, 0.0) + values_N.sum()
        for name, value in result.maxima.items():
            self._maxima[name] = torch.maximum(self._maxima[name], value)

    def finish(self, ranks: Ranks, num_trained_tokens: int) -> dict[str, float]:
        """Means are over all trained tokens of the batch. A maximum over no token is left out."""
        sums = ranks.reduce(torch.stack([self._loss, *self._sums.values()])).tolist()
        maxima = ranks.reduce(torch.stack([*self._maxima.values()]), dist.ReduceOp.MAX).tolist()
        metrics = {"train/loss": sums[0]}
        for name, total in zip(self._sums, sums[1:], strict=True):
            metrics[name] = total / num_trained_tokens
        return metrics | {name: value for name, value in zip(MAXIMA, maxima, strict=True) if value >= 0}
