"""Generalized advantage estimation (Schulman et al., arXiv:1506.02438), over turns and over tokens.

A_t = sum_l (discount * gae_lambda)^l d_{t+l}, with d_t = r_t + discount * V_{t+1} - V_t, and V = 0 after the end.
Actions of masked turns are none of the policy's: they are left out, and what they earned belongs to the trained turn
before. What was said of the whole episode, rewards of groups included, is earned at the last trained turn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from agentgym.rl.advantages.advantage import BatchAdvantages, StepBatch, TurnTokens, reward_of
from agentgym.rl.advantages.batch import whitened
from agentgym.rl.advantages.episodes import MeanOnly
from agentgym.rl.advantages.turns import check_share, mean_to_go, rewards_to_go
from agentgym.types import Episode, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeTurns(MeanOnly):
    """GAE with a turn as one action (for agents of several turns: arXiv:2505.11821, sec. 4; VAGEN, arXiv:2510.16907).

    V of a turn is the critic's value before its first token; without a critic it is the mean reward to go of the group
    at that turn, as in `per_turn`, which is this with gae_lambda 1 but for the scale. With a critic groups of equal
    rewards are trained, too.
    """

    discount: float = 1.0
    """What a reward of the next turn counts for this one; 1 counts all alike."""
    gae_lambda: float = 0.95
    """The weight of later turns: 0 trusts the values alone, 1 the rewards alone."""
    critic: bool = False
    """Train a critic for the values; false takes the group's mean reward to go."""
    whiten: bool = True
    """Normalize the advantages, (A - mean) / std over all trained tokens of the step."""

    def __post_init__(self) -> None:
        check_share("discount", self.discount)
        check_share("gae_lambda", self.gae_lambda)

    @property
    def needs_critic(self) -> bool:
        return self.critic

    @property
    def trains_equal_groups(self) -> bool:
        return self.critic

    def of_turns(self, episodes_G: Sequence[Episode]) -> list[list[float]] | None:
        """Advantages of turns without a critic; whitened later."""
        if self.critic or not any(episode.turns for episode in episodes_G):
            return None
        baseline_T = mean_to_go([rewards_to_go(episode, self.discount) for episode in episodes_G])
        found = []
        for episode in episodes_G:
            trained = [number for number, turn in enumerate(episode.turns) if _acts(turn)]
            estimated = gae(
                rewards_of_turns(episode), [baseline_T[number] for number in trained], self.discount, self.gae_lambda
            )
            of_turns = dict(zip(trained, estimated, strict=True))
            found.append([of_turns.get(number, 0.0) for number in range(len(episode.turns))])
        return found

    def of_batch(self, batch: StepBatch) -> BatchAdvantages:
        raw: dict[str, TurnTokens] = {}
        returns: dict[str, TurnTokens] = {}
        for group in batch.groups:
            counted = [e for e, given in zip(group.episodes, group.advantages, strict=True) if given is not None]
            of_group = self.of_turns(counted)
            for number, episode in enumerate(counted):
                if not episode.num_trained_tokens:
                    continue
                if of_group is not None:
                    of_turns = of_group[number]
                else:
                    of_turns, targets = self._from_critic(episode, batch.values[episode.episode_id])
                    returns[episode.episode_id] = _spread(episode, targets)
                raw[episode.episode_id] = _spread(episode, of_turns)
        return BatchAdvantages(advantages=whitened(raw) if self.whiten else raw, returns=returns)

    def _from_critic(self, episode: Episode, values: TurnTokens) -> tuple[list[float], list[float]]:
        before = [row[0] for row in values if row]
        estimated = gae(rewards_of_turns(episode), before, self.discount, self.gae_lambda)
        advantages, targets = iter(estimated), iter(map(sum, zip(estimated, before, strict=True)))
        return [next(advantages) if row else 0.0 for row in values], [next(targets) if row else 0.0 for row in values]


@dataclass(frozen=True, slots=True, kw_only=True)
class GaeTokens(MeanOnly):
    """GAE with a token as one action, as PPO for language models has it (arXiv:1707.06347, eq. 11; arXiv:2203.02155).

    V is the critic's; a turn's reward is earned with its last token, and the next turn's first token follows it.
    Groups of equal rewards are trained.
    """

    discount: float = 1.0
    """What a reward of the next token counts for this one; 1 counts all alike."""
    gae_lambda: float = 0.95
    """The weight of later tokens: 0 trusts the critic alone, 1 the rewards alone."""
    whiten: bool = True
    """Normalize the advantages, (A - mean) / std over all trained tokens of the step."""

    def __post_init__(self) -> None:
        check_share("discount", self.discount)
        check_share("gae_lambda", self.gae_lambda)

    @property
    def needs_critic(self) -> bool:
        return True

    @property
    def trains_equal_groups(self) -> bool:
        return True

    def of_batch(self, batch: StepBatch) -> BatchAdvantages:
        raw: dict[str, TurnTokens] = {}
        returns: dict[str, TurnTokens] = {}
        for episode in batch.trained():
            values = batch.values[episode.episode_id]
            of_turns = iter(rewards_of_turns(episode))
            rewards = [r for row in values if row for r in [0.0] * (len(row) - 1) + [next(of_turns)]]
            expected = [value for row in values for value in row]
            estimated = gae(rewards, expected, self.discount, self.gae_lambda)
            targets = [*map(sum, zip(estimated, expected, strict=True))]
            raw[episode.episode_id] = _rows(estimated, values)
            returns[episode.episode_id] = _rows(targets, values)
        return BatchAdvantages(advantages=whitened(raw) if self.whiten else raw, returns=returns)


def gae(rewards_T: Sequence[float], values_T: Sequence[float], discount: float, gae_lambda: float) -> list[float]:
    """[T]; see the module. values_T: V before each action."""
    found: list[float] = []
    advantage = following = 0.0
    for reward, value in zip(reversed(rewards_T), reversed(values_T), strict=True):
        advantage = reward + discount * following - value + discount * gae_lambda * advantage
        following = value
        found.append(advantage)
    return found[::-1]


def rewards_of_turns(episode: Episode) -> list[float]:
    """What each trained turn earned; they add up to the episode's reward, but for masked turns before the first."""
    contributed = episode.turn_rewards or [0.0] * len(episode.turns)
    earned: list[float] = []
    for turn, reward in zip(episode.turns, contributed, strict=True):
        if _acts(turn):
            earned.append(reward)
        elif earned:
            earned[-1] += reward
    if earned:
        earned[-1] += reward_of(episode) - math.fsum(contributed)
    return earned


def _acts(turn: Turn) -> bool:
    return bool(turn.completion_ids) and not turn.masked


def _spread(episode: Episode, of_turns: Sequence[float]) -> TurnTokens:
    """A turn's number for each of its tokens."""
    pairs = zip(episode.turns, of_turns, strict=True)
    return [[] if turn.masked else [value] * len(turn.completion_ids) for turn, value in pairs]


def _rows(flat: Sequence[float], like: TurnTokens) -> TurnTokens:
    ends = [*accumulate(map(len, like))]
    return [[*flat[end - len(row) : end]] for row, end in zip(like, ends, strict=True)]
