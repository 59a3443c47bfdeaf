"""What an advantage is: a frozen dataclass that maps the episodes of a group, or of a step, to numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from agentgym.types import Episode, Group

EPSILON = 1e-6  # added to a standard deviation
ROUNDING = 1e-12  # numbers that differ by less of the largest one are equal: sums in floats end like that

TurnTokens: TypeAlias = list[list[float]]
"""For each turn of an episode a number for each token that it sampled; [] for a turn that is masked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """What one step trains on.

    reference, teacher: log-probabilities of the sampled tokens under those models. values: what the critic expected
    before each token. All by episode id, and empty where the advantage does not ask for them.
    """

    groups: Sequence[Group]
    reference: Mapping[str, TurnTokens] = field(default_factory=dict)
    teacher: Mapping[str, TurnTokens] = field(default_factory=dict)
    values: Mapping[str, TurnTokens] = field(default_factory=dict)

    def trained(self) -> Iterator[Episode]:
        return (episode for group in self.groups for episode, _ in group.trained())


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAdvantages:
    """The advantages of every trained episode, by episode id. returns: what the critic should have expected; empty
    without one.
    """

    advantages: Mapping[str, TurnTokens]
    returns: Mapping[str, TurnTokens] = field(default_factory=dict)


class Advantage(ABC):
    """Inherit it as a frozen dataclass: the fields are the advantage's settings in a recipe.

    The first three methods see one group as soon as it is played; `of_batch` sees all groups of a step just before
    it, and has the last word.
    """

    __slots__ = ()

    @abstractmethod
    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        """One number for each episode of a group. All of them have a reward.

        A group whose trained episodes all have 0.0 has no signal and is skipped; one whose turns are all masked is not
        trained. In a group that is trained an episode with 0.0 counts as any other in the means and in the KL term.
        """

    def of_turns(self, episodes_G: Sequence[Episode]) -> list[list[float]] | None:
        """One number for each turn of each episode; None where all turns of an episode share its advantage."""
        return None

    def of_tokens(self, episodes_G: Sequence[Episode]) -> list[TurnTokens] | None:
        """Advantages of each token, by episode and turn; None if the tokens of a turn share one."""
        return None

    def of_batch(self, batch: StepBatch) -> BatchAdvantages | None:
        """Advantages from the groups of a whole step; None if those of each group are final.

        It must depend on the episodes and the batch alone, not on advantages that were given before: a step can be
        trained again from its record.
        """
        return None

    @property
    def trains_equal_groups(self) -> bool:
        """Whether a group teaches something even if all its numbers are 0.0; it is then never skipped."""
        return False

    @property
    def needs_reference(self) -> bool:
        """Whether `of_batch` reads `reference`; a reference model then runs beside the trainer."""
        return False

    @property
    def needs_critic(self) -> bool:
        """Whether `of_batch` reads `values`; the trainer then has a critic's head, which learns the `returns`."""
        return False

    @property
    def teacher_path(self) -> str | None:
        """The model whose log-probabilities `of_batch` reads as `teacher`, as a recipe names models; None: none."""
        return None


def centred_rewards(episodes_G: Sequence[Episode]) -> tuple[list[float], float]:
    """Rewards minus their mean, and their standard deviation.

    Exactly 0.0 where a reward equals the mean, and so everywhere when all rewards are equal; "equal" is up to the
    rounding of floats.
    """
    rewards_G = [reward_of(episode) for episode in episodes_G]
    count = max(1, len(rewards_G))
    mean = math.fsum(rewards_G) / count
    nothing = ROUNDING * max(map(abs, rewards_G), default=0.0)
    centred_G = [reward - mean if abs(reward - mean) > nothing else 0.0 for reward in rewards_G]
    return centred_G, math.sqrt(math.fsum(value * value for value in centred_G) / count)


def reward_of(episode: Episode) -> float:
    """Raises ValueError where it, or what a turn contributed to it, is not finite: NaN compares as equal to a mean."""
    assert episode.reward is not None, "a scored episode has a reward"
    if not all(map(math.isfinite, (episode.reward, *episode.turn_rewards))):
        of_turns = f" and the rewards of turns {episode.turn_rewards}" if episode.turn_rewards else ""
        raise ValueError(
            f"episode {episode.episode_id} has the reward {episode.reward}{of_turns}; give finite numbers, or None and "
            "the outcome INFRA_ERROR for an episode that could not be scored"
        )
    return episode.reward
