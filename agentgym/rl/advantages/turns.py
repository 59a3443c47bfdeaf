"""One number for a turn: what was earned from it on, against what the group earned from there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.rl.advantages.advantage import EPSILON, ROUNDING, centred_rewards, reward_of
from agentgym.rl.advantages.episodes import StdNormalized
from agentgym.types import Episode


@dataclass(frozen=True, slots=True, kw_only=True)
class PerTurn(StdNormalized):
    """Each turn gets what the episode earned from it on, compared with the group's mean at that turn.

    A_it = (G_it - mean_j G_jt) / scale, with the discounted reward to go G_it = r_it + discount * G_i,t+1, where r_is
    is what turn s contributed to the reward R_i (rewards of the scope `turn`); the rest of R_i, what was said of the
    whole episode and rewards of groups, is earned at the last turn. With a discount of 1: G_it = R_i - sum_{s<t} r_is.
    The scale is std_j R_j, or the root mean square of all deviations where that is larger: R that differ by next to
    nothing must not blow up turns that differ. An episode that ended before turn t enters the mean with what was left
    at its end. Without rewards of turns and discount it equals `std_normalized`.
    Source: policy gradients with reward to go and a baseline that depends on the time step (Williams 1992; Sutton &
    Barto, Reinforcement Learning, 2018, sec. 13.4); for turns of language-model agents, arXiv:2505.11821, sec. 4.
    """

    discount: float = 1.0
    """What a reward of the next turn counts for this one; 1 counts all alike."""

    def __post_init__(self) -> None:
        check_share("discount", self.discount)

    def of_turns(self, episodes_G: Sequence[Episode]) -> list[list[float]] | None:
        if self.discount == 1 and not any(episode.turn_rewards for episode in episodes_G):
            return None
        to_go_GT = [rewards_to_go(episode, self.discount) for episode in episodes_G]
        centred_GT = _centred(to_go_GT, mean_to_go(to_go_GT))
        flat = [value for row in centred_GT for value in row]
        spread = math.sqrt(math.fsum(value * value for value in flat) / max(1, len(flat)))
        scale = max(centred_rewards(episodes_G)[1], spread)
        return [
            [value / (scale + EPSILON) for value in row[: len(episode.turns)]]
            for row, episode in zip(centred_GT, episodes_G, strict=True)
        ]


def check_share(name: str, value: float) -> None:
    """Raises ValueError unless it is between 0 and 1."""
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; allowed is 0 to 1")


def rewards_to_go(episode: Episode, discount: float = 1.0) -> list[float]:
    """Rewards to go before each turn, and at the end: [T + 1]."""
    contributed = episode.turn_rewards or [0.0] * len(episode.turns)
    left = reward_of(episode) - math.fsum(contributed)
    if discount == 1:
        return [reward_of(episode) - math.fsum(contributed[:turn]) for turn in range(len(contributed) + 1)]
    to_go = [left]
    for number, reward in enumerate(reversed(contributed)):
        to_go.append(reward + (discount if number else 1.0) * to_go[-1])
    return to_go[::-1]


def mean_to_go(to_go_GT: Sequence[Sequence[float]]) -> list[float]:
    """The mean reward to go by turn, over the group: an ended episode counts with what was left at its end."""
    num_turns = max(map(len, to_go_GT), default=0)
    return [
        math.fsum(to_go[min(turn, len(to_go) - 1)] for to_go in to_go_GT) / len(to_go_GT) for turn in range(num_turns)
    ]


def _centred(to_go_GT: list[list[float]], baseline_T: list[float]) -> list[list[float]]:
    nothing = ROUNDING * max((abs(g) for row in to_go_GT for g in row), default=0.0)
    return [[g - b if abs(g - b) > nothing else 0.0 for g, b in zip(row, baseline_T, strict=False)] for row in to_go_GT]
