"""How much better an episode was than the others of its group."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

from agentgym.types import Episode, Group, Outcome

_EPSILON = 1e-6  # added to a standard deviation
_ROUNDING = 1e-12  # rewards that differ by less of the largest one are equal: sums in floats end like that


class Advantage(ABC):
    """Inherit it as a frozen dataclass: the fields are the advantage's settings in a recipe."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        """One number for each episode of a group. All of them have a reward.

        A group whose numbers are all 0.0 has no signal and is skipped. In one that is trained an episode with 0.0
        counts as any other in the means and in the KL term.
        """

    def of_turns(self, episodes_G: Sequence[Episode]) -> list[list[float]] | None:
        """One number for each turn of each episode; None where all turns of an episode share its advantage."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanOnly(Advantage):
    """r - mean (Dr. GRPO, arXiv:2503.20783, eq. 3)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        return centred_rewards(episodes_G)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class StdNormalized(Advantage):
    """(r - mean) / std over the group (GRPO, arXiv:2402.03300, sec. 4.1.2)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        centred_G, std = centred_rewards(episodes_G)
        return [value / (std + _EPSILON) for value in centred_G]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rloo(Advantage):
    """r minus the mean of the others (arXiv:2402.14740, eq. 8)."""

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        count = len(episodes_G)
        return [value * count / max(1, count - 1) for value in centred_rewards(episodes_G)[0]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PerTurn(StdNormalized):
    """Each turn gets what the episode earned from it on, compared with the group's mean at that turn.

    A_it = (G_it - mean_j G_jt) / scale, with the reward to go G_it = R_i - sum_{s<t} r_is, where r_is is what turn s
    contributed to the reward R_i (rewards of the scope `turn`). The scale is std_j R_j, or the root mean square of
    all deviations where that is larger: R that differ by next to nothing must not blow up turns that differ. An
    episode that ended before turn t enters the mean with what was left at its end. Without rewards of turns it equals
    `std_normalized`.
    Source: policy gradients with reward to go and a baseline that depends on the time step (Williams 1992; Sutton &
    Barto, Reinforcement Learning, 2018, sec. 13.4); for turns of language-model agents, arXiv:2505.11821, sec. 4.
    """

    def of_turns(self, episodes_G: Sequence[Episode]) -> list[list[float]] | None:
        if not any(episode.turn_rewards for episode in episodes_G):
            return None
        to_go_GT = [_rewards_to_go(episode) for episode in episodes_G]
        num_turns = max(map(len, to_go_GT))
        baseline_T = [
            math.fsum(to_go[min(t, len(to_go) - 1)] for to_go in to_go_GT) / len(to_go_GT) for t in range(num_turns)
        ]
        centred_GT = _centred(to_go_GT, baseline_T)
        flat = [value for row in centred_GT for value in row]
        spread = math.sqrt(math.fsum(value * value for value in flat) / len(flat))
        scale = max(centred_rewards(episodes_G)[1], spread)
        return [
            [value / (scale + _EPSILON) for value in row[: len(episode.turns)]]
            for row, episode in zip(centred_GT, episodes_G, strict=True)
        ]


def _rewards_to_go(episode: Episode) -> list[float]:
    """Before each turn, and at the end: [T + 1]."""
    assert episode.reward is not None, "a scored episode has a reward"
    contributed = episode.turn_rewards or [0.0] * len(episode.turns)
    return [episode.reward - math.fsum(contributed[:turn]) for turn in range(len(contributed) + 1)]


def _centred(to_go_GT: list[list[float]], baseline_T: list[float]) -> list[list[float]]:
    nothing = _ROUNDING * max((abs(g) for row in to_go_GT for g in row), default=0.0)
    return [[g - b if abs(g - b) > nothing else 0.0 for g, b in zip(row, baseline_T, strict=False)] for row in to_go_GT]


def centred_rewards(episodes_G: Sequence[Episode]) -> tuple[list[float], float]:
    """Rewards minus their mean, and their standard deviation.

    Exactly 0.0 where a reward equals the mean, and so everywhere when all rewards are equal; "equal" is up to the
    rounding of floats.
    """
    rewards_G = [episode.reward for episode in episodes_G if episode.reward is not None]
    assert len(rewards_G) == len(episodes_G), "a scored episode has a reward"
    count = max(1, len(rewards_G))
    mean = math.fsum(rewards_G) / count
    nothing = _ROUNDING * max(map(abs, rewards_G), default=0.0)
    centred_G = [reward - mean if abs(reward - mean) > nothing else 0.0 for reward in rewards_G]
    return centred_G, math.sqrt(math.fsum(value * value for value in centred_G) / count)


def assign_advantages(group: Group, advantage: Advantage) -> None:
    """Fill `group.advantages`. Episodes that broken infrastructure cost get None and touch no other's."""
    counts_G = [episode.outcome in (Outcome.SCORED, Outcome.INVALID) for episode in group.episodes]
    counted = list(compress(group.episodes, counts_G))
    values = advantage(counted)
    if len(values) != len(counted) or not all(map(math.isfinite, values)):
        raise ValueError(
            f"{type(advantage).__name__} gave the advantages {values} for {len(counted)} episodes; "
            "give one finite number for each"
        )
    for episode, of_turns in zip(counted, advantage.of_turns(counted) or [[] for _ in counted], strict=True):
        if of_turns and not (len(of_turns) == len(episode.turns) and all(map(math.isfinite, of_turns))):
            raise ValueError(
                f"{type(advantage).__name__} gave the advantages {of_turns} for {len(episode.turns)} turns; "
                "give one finite number for each"
            )
        episode.turn_advantages = of_turns
    remaining = iter(values)
    group.advantages = [next(remaining) if counts else None for counts in counts_G]
