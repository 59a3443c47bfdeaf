"""Scores episodes with weighted reward plugins; a reward that fails costs one episode, never the run."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import math
import pickle
import sys
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, Self, cast

from agentgym.contracts import check_call
from agentgym.env import Environment, default_weights
from agentgym.errors import InfraError, UserError, nearest
from agentgym.held_loop import limited
from agentgym.hooks import PluginRegistry
from agentgym.rewards import UNBOUNDED, Reward, RewardFunction, Score, marked_rewards
from agentgym.rollout.waiting import Begun
from agentgym.rollout.worker import Answer, as_score, as_scores, failure
from agentgym.rollout.worker_pool import WorkerPool
from agentgym.types import Episode, ErrorRecord, Outcome

log = logging.getLogger(__name__)

RANGE_SLACK = 1e-9  # a mean of shares may miss its bound by rounding


class Scorer:
    """Fills `episode.rewards` and `episode.reward`.

    weights: by reward name; a reward with the weight 0 is recorded and counts nothing, nor does its failure. Inline
    rewards and `async def` rewards run on the event loop, plain ones in killable processes, at most `num_workers`
    of them, which start when they are first needed. Those of a script or a notebook, which no other process can
    import, run inline. Use it as `async with`, or call `close()`.
    """

    def __init__(self, rewards: Iterable[Reward], weights: Mapping[str, float], *, num_workers: int = 2) -> None:
        by_name = {reward.name: reward for reward in rewards}
        for name, weight in weights.items():
            if name not in by_name:
                raise UserError(f"no reward {name!r} to weigh.{nearest(name, by_name)}")
            if not math.isfinite(weight):
                raise UserError(f"rewards.{name} is {weight}; a weight must be a finite number")
            if weight and UNBOUNDED in (-by_name[name].low, by_name[name].high):  # the floor would be no number
                raise UserError(
                    f"rewards.{name} is {weight:g}, but {name!r} is a metric, which has no range; mark it with "
                    "`@reward(low=..., high=...)` to weigh it"
                )
        if not weights:
            raise UserError(
                "no reward is weighed; name at least one under `rewards`, for example success: 1, "
                "or mark a method of the environment with `@reward`"
            )
        self._weights = dict(weights)
        chosen = [by_name[name] for name in weights]
        self._group = [_on_the_loop(r) for r in chosen if r.scope == "group"]
        chosen = [r for r in chosen if r.scope != "group"]
        self._async = [r for r in chosen if _is_async(r.function)]
        plain = [r for r in chosen if not _is_async(r.function)]
        self._inline = [r for r in plain if r.inline or _is_only_here(r)]
        recorded_last = sorted(plain, key=lambda r: not weights[r.name])  # one that hangs takes no score with it
        self._plain = [r for r in recorded_last if r not in self._inline]
        self._warned: set[str] = set()
        ends = [(weight * by_name[name].low, weight * by_name[name].high) for name, weight in weights.items()]
        self.floor = sum(map(min, ends))  # the least that an episode can earn: what breaking the rules earns
        self.ceiling = sum(map(max, ends))
        self._pool = WorkerPool([_pickled(r) for r in self._plain], size=num_workers)

    @classmethod
    def of(
        cls, environment: Environment[Any], registry: PluginRegistry, weights: Mapping[str, float] | None = None
    ) -> Self:
        """weights: by name or import path; empty takes the environment's. Raises UserError for an unknown name."""
        found: dict[str, Reward] = {}
        weigh: dict[str, float] = {}
        for key, weight in (weights or default_weights(environment)).items():
            one = find_reward(key, environment, registry)
            check_call(one.function, 1, f"the function of the reward {one.name!r}")
            if one.name in found:
                raise UserError(f"two rewards are called {one.name!r}: give one of them another name")
            found[one.name], weigh[one.name] = one, weight
        return cls(found.values(), weigh)

    @property
    def weights(self) -> Mapping[str, float]:
        """By the names that episodes have them by, which an import path is not."""
        return self._weights

    async def score(self, episode: Episode) -> None:
        """Fill `rewards`, and `reward` with their weighted sum, or None when a weighted one is None.

        A reward that raises, takes too long, or gives no finite number in its range makes the episode an
        infrastructure error: then outcome and error are set, and `rewards` keeps what was scored before. One with
        the weight 0 stays None instead, with a warning for the first time.
        The outcome of an episode that was scored is its player's to set.
        """
        episode.rewards = dict.fromkeys(self._weights)
        episode.turn_rewards, episode.reward = [], None
        for reward in self._inline:
            if not self._record(episode, reward, _call(reward, episode)):
                return
        if self._plain and not await self._score_plain(episode):
            return
        for reward in self._async:
            if not self._record(episode, reward, await _await(reward, episode)):
                return
        of_group = {reward.name for reward in self._group}  # they come when all have been played
        weighted = [
            (weight, episode.rewards[name]) for name, weight in self._weights.items() if weight and name not in of_group
        ]
        if all(score is not None for _, score in weighted):
            episode.reward = sum((weight * cast(float, score) for weight, score in weighted), 0.0)

    async def score_group(self, episodes: Sequence[Episode]) -> None:
        """Add the rewards that compare the scored episodes of a group; one that fails costs all of them."""
        scored = [episode for episode in episodes if episode.outcome is Outcome.SCORED]
        for reward in self._group if scored else ():
            answers = await _compare(reward, scored)
            for episode, answer in zip(scored, answers, strict=True):
                if not self._record(episode, reward, answer):
                    episode.reward = None
                    continue
                score, weight = episode.rewards[reward.name], self._weights[reward.name]
                if not weight or episode.reward is None:
                    continue
                episode.reward = None if score is None else episode.reward + weight * score
                if score is None:
                    message = f"the reward {reward.name!r} of the group gave this episode no score"
                    episode.outcome = Outcome.INFRA_ERROR
                    episode.error = ErrorRecord(source="rewards", kind="unscored", message=message)

    async def close(self) -> None:
        """End the worker processes; safe to call twice."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _score_plain(self, episode: Episode) -> bool:
        # Token ids and logprobs stay here: they are most of an episode's bytes, and a reward
        # that has to see them can be `async def`.
        light = dataclasses.replace(episode, turns=[])
        try:
            answers = await self._pool.run(light, [reward.timeout_s for reward in self._plain])
        except InfraError as error:
            answers = [failure(error)]
        return all(self._record(episode, r, answer) for r, answer in zip(self._plain, answers, strict=False))

    def _record(self, episode: Episode, reward: Reward, answer: Answer) -> bool:
        """Put an answer on the episode; False when it made the episode an infrastructure error."""
        name, kind, message = reward.name, answer.error_kind, answer.error
        if not kind and (wrong := _wrong(reward, answer.score, episode)):
            kind, message = "ValueError", wrong
        if not kind:
            self._keep(episode, reward, answer.score)
        elif self._weights[name]:
            episode.outcome = Outcome.INFRA_ERROR
            episode.error = ErrorRecord(source=f"reward:{name}", kind=kind, message=message)
            return False
        elif name not in self._warned:
            self._warned.add(name)
            log.warning(
                "the reward %r has the weight 0 and failed: %s: %s. Such scores are recorded as missing, "
                "and counted as reward/%s_missing",
                name,
                kind,
                message,
                name,
            )
        return True

    def _keep(self, episode: Episode, reward: Reward, score: float | list[float] | None) -> None:
        if not isinstance(score, list):
            episode.rewards[reward.name] = score
            return
        episode.rewards[reward.name] = math.fsum(score) / len(score) if score else None
        weight = self._weights[reward.name]
        if weight and score:
            before = episode.turn_rewards or [0.0] * len(score)
            episode.turn_rewards = [old + weight * one / len(score) for old, one in zip(before, score, strict=True)]


def _wrong(reward: Reward, score: float | list[float] | None, episode: Episode) -> str:
    """What is wrong with a score; "" for nothing."""
    if isinstance(score, list) != (reward.scope == "turn") and score is not None:
        return f"it gave {score!r:.80}; with the scope `turn` a reward gives a list, otherwise a number"
    if isinstance(score, list) and episode.turns and len(score) != len(episode.turns):  # none where a script played
        return f"it gave {len(score)} scores for {len(episode.turns)} turns; give one for each"
    for one in score if isinstance(score, list) else [] if score is None else [score]:
        if not reward.low - RANGE_SLACK <= one <= reward.high + RANGE_SLACK:  # nan too
            return f"it gave {one}; its range is {reward.low:g} to {reward.high:g}"
    return ""


def _on_the_loop(reward: Reward) -> Reward:
    """Raises UserError for a reward of a group that would have to run in a process."""
    if not (reward.inline or _is_async(reward.function)):
        raise UserError(
            f"the reward {reward.name!r} compares the episodes of a group, on the event loop; make it `async def`, or "
            'inline where it is quick: @reward(scope="group", inline=True)'
        )
    return reward


async def _compare(reward: Reward, episodes: Sequence[Episode]) -> list[Answer]:
    """One answer for each episode. A failure is every episode's."""
    try:
        async with asyncio.timeout(reward.timeout_s) as limit:
            with limited(reward.timeout_s):
                scores: Any = cast(Any, reward.function)(episodes)
            scores = list(await Begun(scores, reward.timeout_s) if inspect.isawaitable(scores) else scores)
        if len(scores) != len(episodes):
            raise ValueError(f"it gave {len(scores)} scores for {len(episodes)} episodes; give one for each")
        return [Answer(score=as_score(score)) for score in scores]
    except Exception as error:  # plugin code: anything may come
        late = isinstance(error, TimeoutError) and limit.expired()
        return [_too_late(reward) if late else failure(error, reward.function)] * len(episodes)


def find_reward(name: str, environment: object, registry: PluginRegistry) -> Reward:
    """Finds a reward by name (the environment's own, its file's, a plugin's), by `distribution:name`, or by import
    path.

    Raises UserError.

    environment: an object, or a factory; of a class the own rewards are found too.
    """
    place = environment if isinstance(environment, type) else type(environment)
    own = marked_rewards(sys.modules.get(place.__module__)) | marked_rewards(environment)
    if name in own:
        return own[name]
    try:
        return registry.reward(name, place)
    except UserError as error:
        if not own:
            raise
        hint = nearest(name, own).replace(" Available:", " The environment's file has:")
        raise UserError(f"{error}{hint}") from error


def _is_async(function: RewardFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object with an `async def __call__`
    )


def _is_only_here(reward: Reward) -> bool:
    if getattr(reward.function, "__module__", None) != "__main__":
        return False
    log.warning(
        "the reward %r is defined in a script or notebook, so it runs in this process, where nothing stops it "
        "when it hangs; define it in a file of its own, or pass inline=True",
        reward.name,
    )
    return True


def _pickled(reward: Reward) -> bytes:
    """The function by its name, which the worker imports; a method brings its environment along."""
    try:
        return pickle.dumps(reward.function)
    except Exception as error:  # plugin code: anything may come
        raise UserError(
            f"the reward {reward.name!r} cannot be sent to a process: {error}; define it with `def` at the top "
            "level of a module or file, or make it `async def`, or inline"
        ) from error


def _call(reward: Reward, episode: Episode) -> Answer:
    try:
        with limited(reward.timeout_s):
            return Answer(score=as_scores(reward.function(episode)))
    except Exception as error:  # plugin code: anything may come
        return failure(error, reward.function)


async def _await(reward: Reward, episode: Episode) -> Answer:
    try:
        async with asyncio.timeout(reward.timeout_s) as limit:
            scoring = cast(Awaitable[Score], reward.function(episode))
            return Answer(score=as_scores(await Begun(scoring, reward.timeout_s)))
    except TimeoutError as error:
        if not limit.expired():
            return failure(error, reward.function)
        return _too_late(reward)
    except Exception as error:  # plugin code: anything may come
        return failure(error, reward.function)


def _too_late(reward: Reward) -> Answer:
    return Answer(error_kind="TimeoutError", error=f"it took longer than {reward.timeout_s:g} s")
