"""A critic: a linear head on the policy's last hidden states, which learns what is still to be earned.

Axes: N trained tokens, D hidden states. The policy's layers get no gradient of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.trainer.config import CriticConfig
from agentgym.trainer.parallel import Ranks

SMALL = 1e-12  # a variance below it is rounding


class Critic:
    """V = w h / sqrt(D) + b, with w and b 0 at first; least squares on the returns, by Adam.

    Every rank holds all of it and adds the gradient of its own tokens. The hidden states of a batch's trained tokens
    are kept until `fit`, in 4 D bytes for each token.
    """

    def __init__(self, dim: int, config: CriticConfig, ranks: Ranks) -> None:
        self._config, self._ranks = config, ranks
        self.weights = torch.zeros(dim + 1, device=ranks.device)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._optimizer = torch.optim.Adam([self.weights], lr=config.lr, foreach=False)
        self._optimizer.state[self.weights] = {
            "step": torch.zeros(()),
            "exp_avg": torch.zeros_like(self.weights),
            "exp_avg_sq": torch.zeros_like(self.weights),
        }

    @torch.no_grad()
    def values(self, hidden_ND: Tensor) -> Tensor:
        """[N], float32."""
        dim = self.weights.numel() - 1
        values_N: Tensor = hidden_ND.detach().float() @ (self.weights[:dim] / dim**0.5) + self.weights[dim]
        return values_N

    def keep(self, hidden_ND: Tensor, returns_N: Tensor) -> None:
        """Keeps one microbatch for the next `fit`."""
        self._kept.append((hidden_ND.detach().float(), returns_N.float()))

    def forget(self) -> None:
        self._kept.clear()

    @torch.no_grad()
    def fit(self) -> dict[str, float]:
        """Some steps on what was kept. Metrics are of before; {} where nothing was kept. Collective."""
        kept, self._kept = self._kept, []
        dim, metrics = self.weights.numel() - 1, dict[str, float]()
        for epoch in range(self._config.epochs):
            sums = torch.zeros(dim + 5, dtype=torch.float64, device=self._ranks.device)
            for hidden_ND, returns_N in kept:
                errors_N = self.values(hidden_ND) - returns_N
                sums[:dim] += hidden_ND.t() @ errors_N / dim**0.5
                e_N, r_N = errors_N.double(), returns_N.double()
                sums[dim:] += torch.stack([e_N.sum(), torch.ones_like(e_N).sum(), e_N @ e_N, r_N.sum(), r_N @ r_N])
            bias, count, *others = self._ranks.reduce(sums)[dim:].tolist()
            if not count:
                return {}
            if not epoch:
                metrics = _metrics(bias / count, *(total / count for total in others))
            self.weights.grad = (sums[: dim + 1] / count).to(self.weights.dtype)
            self._optimizer.step()
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        """The live tensors: loading writes into them."""
        return {"weights": self.weights, **self._optimizer.state[self.weights]}


def _metrics(bias: float, square: float, mean: float, second: float) -> dict[str, float]:
    """explained: the share of the returns' variance; below 0 it is worse than their mean."""
    variance = second - mean**2
    explained = 1 - (square - bias**2) / variance if variance > SMALL else 0.0
    return {"train/critic_loss": square, "train/critic_explained": explained, "train/return_mean": mean}
