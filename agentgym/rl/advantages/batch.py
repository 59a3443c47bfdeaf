"""One number for an episode or a token, normalised over all that a step trains on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.rl.advantages.advantage import (
    EPSILON,
    ROUNDING,
    Advantage,
    BatchAdvantages,
    StepBatch,
    TurnTokens,
    centred_rewards,
    reward_of,
)
from agentgym.types import Episode, Group


@dataclass(frozen=True, slots=True, kw_only=True)
class ReinforcePlusPlus(Advantage):
    """REINFORCE++ (arXiv:2501.03262, sec. 3): no critic, and one normalisation over the step's whole batch.

    A_t = R - kl_coef * sum_{i>=t} k_i, with k_i = log m_i - log ref_i of the sampler's m and the reference model, over
    the episode's trained tokens. Then (A - mean) / std over all trained tokens of the step.
    """

    kl_coef: float = 0.0
    """The weight of the KL to the reference model; 0 needs no reference model."""
    group_baseline: bool = False
    """Take R minus the group's mean in place of R (REINFORCE++-baseline), and skip groups of equal rewards; false
    compares those with the other groups, and trains them."""

    def __post_init__(self) -> None:
        if self.kl_coef < 0:
            raise ValueError(f"kl_coef is {self.kl_coef}; allowed is 0 or more")

    @property
    def needs_reference(self) -> bool:
        return self.kl_coef > 0

    @property
    def trains_equal_groups(self) -> bool:
        return not self.group_baseline

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        """What is compared with other groups: R, or its deviation from the group's mean."""
        return centred_rewards(episodes_G)[0] if self.group_baseline else [*map(reward_of, episodes_G)]

    def of_batch(self, batch: StepBatch) -> BatchAdvantages:
        raw: dict[str, TurnTokens] = {}
        for group in batch.groups:
            for episode, earned in zip(_counted(group), self(_counted(group)), strict=True):
                if episode.num_trained_tokens:
                    raw[episode.episode_id] = self._less_kl(episode, earned, batch.reference)
        return BatchAdvantages(advantages=whitened(raw))

    def _less_kl(self, episode: Episode, earned: float, reference: Mapping[str, TurnTokens]) -> TurnTokens:
        if not self.kl_coef:
            return _of_episode(episode, earned)
        rows, left = [], earned
        for turn, ref in reversed([*zip(episode.turns, reference[episode.episode_id], strict=True)]):
            row = []
            for sampler, other in [] if turn.masked else reversed([*zip(turn.logprobs, ref, strict=True)]):
                left -= self.kl_coef * (sampler - other)
                row.append(left)
            rows.append(row[::-1])
        return rows[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStd(Advantage):
    """(r - mean) / std with the group's mean and the std of all rewards of the step: TRL's `scale_rewards: batch`.

    A group whose rewards are nearly equal is not blown up as with its own std (arXiv:2508.08221, sec. 4). The step's
    groups are those that are trained: groups of equal rewards are skipped, and do not enter the std.
    """

    def __call__(self, episodes_G: Sequence[Episode]) -> list[float]:
        """What is divided by the step's std."""
        return centred_rewards(episodes_G)[0]

    def of_batch(self, batch: StepBatch) -> BatchAdvantages:
        std = centred_rewards([episode for group in batch.groups for episode in _counted(group)])[1]
        advantages: dict[str, TurnTokens] = {}
        for group in batch.groups:
            for episode, centred in zip(_counted(group), self(_counted(group)), strict=True):
                if episode.num_trained_tokens:
                    advantages[episode.episode_id] = _of_episode(episode, centred / (std + EPSILON))
        return BatchAdvantages(advantages=advantages)


def _of_episode(episode: Episode, value: float) -> TurnTokens:
    """The same for all of its trained tokens."""
    return [[] if turn.masked else [value] * len(turn.completion_ids) for turn in episode.turns]


def _counted(group: Group) -> list[Episode]:
    return [episode for episode, given in zip(group.episodes, group.advantages, strict=True) if given is not None]


def whitened(raw: Mapping[str, TurnTokens]) -> dict[str, TurnTokens]:
    """(A - mean) / std over all tokens; 0.0 for all where they are equal."""
    flat = [value for rows in raw.values() for row in rows for value in row]
    mean = math.fsum(flat) / max(1, len(flat))
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in flat) / max(1, len(flat)))
    if std <= ROUNDING * max(map(abs, flat), default=0.0):
        return {name: [[0.0] * len(row) for row in rows] for name, rows in raw.items()}
    return {name: [[(value - mean) / (std + EPSILON) for value in row] for row in rows] for name, rows in raw.items()}
