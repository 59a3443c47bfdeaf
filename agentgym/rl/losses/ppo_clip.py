"""PPO with the clipped ratio, and what differs from it by defaults or by one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentgym.rl.losses.loss import Aggregation, TrainedTokens
from agentgym.rl.losses.policy import PolicyLoss
from agentgym.rl.losses.ratio import clipped, token_ratio

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class PpoClip(PolicyLoss):
    """The clipped surrogate of PPO (arXiv:1707.06347, eq. 7), with r = p / p_old:

    loss = -min(r A, clamp(r, 1 - clip_low, 1 + clip_high) A)
    """

    clip_low: float = 0.2
    """The ratio stays above 1 - clip_low."""
    clip_high: float = 0.2
    """The ratio stays below 1 + clip_high."""
    dual_clip: float = 0.0
    """A number c above 1 bounds the loss where A < 0 by c |A|, whose gradient is 0 (arXiv:1912.09729, eq. 5); 0 does
    not: a bad token that became likelier all the same has no bound."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        if self.dual_clip and self.dual_clip <= 1:
            raise ValueError(f"dual_clip is {self.dual_clip}; allowed is above 1, or 0 for none")

    def surrogate(self, tokens: TrainedTokens, old_N: Tensor) -> tuple[Tensor, Tensor]:
        advantages_N = tokens.advantages
        ratio_N = token_ratio(tokens.logprobs, old_N)
        surrogate_N, stopped_N = clipped(ratio_N, advantages_N, self.clip_low, self.clip_high)
        if not self.dual_clip:
            return surrogate_N, stopped_N
        too_likely_N = (advantages_N < 0) & (ratio_N > self.dual_clip)
        surrogate_N = surrogate_N.where(~too_likely_N, self.dual_clip * advantages_N)
        return surrogate_N, stopped_N + too_likely_N


@dataclass(frozen=True, slots=True, kw_only=True)
class DrGrpo(PpoClip):
    """Dr. GRPO (arXiv:2503.20783, eq. 3): PPO's surrogate, summed over tokens and divided by a constant.

    So neither a short right answer nor a long wrong one is preferred for its length. Take `advantage: mean_only`
    with it: the paper drops the division by the standard deviation too.
    """

    aggregation: Aggregation = "fixed_horizon"
    """The paper's is `fixed_horizon`, with the token budget of an answer as horizon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo(PpoClip):
    """DAPO (arXiv:2503.14476, eq. 8): PPO's surrogate with a higher upper bound, as a mean over all tokens.

    The higher bound lets unlikely tokens grow, which keeps the entropy up; no KL term. The rest of DAPO is outside of
    the loss: groups without signal are always skipped, `advantage: soft_overlong` is its soft overlong punishment
    (eq. 13), and `rollout.cut_turns: mask` keeps the tokens of what was cut out of the loss.
    """

    aggregation: Aggregation = "token_mean"
    clip_high: float = 0.28
