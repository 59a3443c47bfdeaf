"""REINFORCE: the policy gradient as it is, without the sampler's log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce(PolicyLoss):
    """-A * grad log p of each trained token (Williams, 1992), as if the newest weights had sampled it.

    On stale samples it is wrong: there GRPO without its importance ratio, which shows what that ratio is for.
    `old` changes nothing here, but allows a correction.
    """

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, None]:
        """The value is A: the ratio p / sg(p), which is 1, only carries the gradient."""
        return (tokens.logprobs - tokens.logprobs.detach()).exp() * tokens.advantages, None
