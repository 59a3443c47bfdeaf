"""Metrics of one step, combined over microbatches and ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from agentgym.rl.losses import Reduction, TokenLoss
from agentgym.trainer.parallel import Ranks


class Totals:
    """Values stay on the device until the end, so that no microbatch waits for the previous one.

    reductions: of every metric that the loss may give. They are declared before the first microbatch, so that all
    ranks combine the same metrics in the same order, also where one rank has no value for some.
    """

    def __init__(self, reductions: Mapping[str, Reduction], device: torch.device) -> None:
        self._reductions = reductions
        self._loss = torch.zeros((), device=device)
        self._sums = {n: torch.zeros((), device=device) for n, r in reductions.items() if r != "max"}
        self._maxima = {n: torch.full((), -torch.inf, device=device) for n, r in reductions.items() if r == "max"}
        self._given: set[str] = set()

    def add(self, loss: Tensor, result: TokenLoss) -> None:
        """loss: this microbatch's share of the batch's loss. Raises ValueError for an undeclared metric."""
        self._loss += loss
        for name, values in result.metrics.items():
            if name in self._sums:
                self._sums[name] += values.sum()
            elif name not in self._maxima:
                raise ValueError(
                    f"the loss gave the metric {name!r} without declaring it; declared are "
                    f"{dict(self._reductions)}. Add it to the class's `metrics` with its reduction."
                )
            elif values.numel():
                self._maxima[name] = torch.maximum(self._maxima[name], values.max())
            self._given.add(name)

    def finish(self, ranks: Ranks, num_trained_tokens: int) -> dict[str, float]:
        """Means are over all trained tokens of the batch. A metric that no microbatch gave is left out."""
        sums = ranks.reduce(torch.stack([self._loss, *self._sums.values()])).tolist()
        given = [torch.full_like(self._loss, name in self._given) for name in self._sums]
        maxima = ranks.reduce(torch.stack([self._loss, *given, *self._maxima.values()]), dist.ReduceOp.MAX).tolist()
        metrics = {"train/loss": sums[0]}
        for name, total, was_given in zip(self._sums, sums[1:], maxima[1:], strict=False):
            if was_given:
                mean = self._reductions[name] == "mean"
                metrics[name] = total / num_trained_tokens if mean else total
        largest = zip(self._maxima, maxima[1 + len(given) :], strict=True)
        return metrics | {name: value for name, value in largest if value > -torch.inf}
