"""Scores episodes with weighted reward plugins; a reward that fails costs one episode, never the run."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import math
import pickle
from collections.abc import Awaitable, Iterable, Mapping
from types import TracebackType
from typing import Self, cast

from agentgym.errors import InfraError, UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.rewards import Reward, RewardFunction, Score
from agentgym.rollout.worker import Answer, Work, as_score, failure
from agentgym.rollout.worker_pool import WorkerPool
from agentgym.types import Episode, ErrorRecord, Outcome

RANGE_SLACK = 1e-9  # a mean of shares may miss its bound by rounding


class Scorer:
    """Fills `episode.rewards` and `episode.reward`.

    weights: by reward name; a reward with the weight 0 is recorded and counts nothing. Inline rewards and
    `async def` rewards run on the event loop, plain ones in killable processes, at most `num_workers` of
    them, which start when they are first needed. Use it as `async with`, or call `close()`.
    """

    def __init__(
        self, rewards: Iterable[Reward], weights: Mapping[str, float], *, num_workers: int = 2
    ) -> None:
        by_name = {reward.name: reward for reward in rewards}
        for name, weight in weights.items():
            if name not in by_name:
                raise UserError(f"no reward {name!r} to weigh.{nearest(name, by_name)}")
            if not math.isfinite(weight):
                raise UserError(f"rewards.{name} is {weight}; a weight must be a finite number")
        if not weights:
            raise UserError("no reward is weighed; name at least one under `rewards`, for example success: 1")
        self._weights = dict(weights)
        chosen = [by_name[name] for name in weights]
        self._inline = [r for r in chosen if r.inline and not _is_async(r.function)]
        self._async = [r for r in chosen if _is_async(r.function)]
        self._plain = [r for r in chosen if not r.inline and not _is_async(r.function)]
        self._floor = sum(
            min(weight * by_name[name].low, weight * by_name[name].high) for name, weight in weights.items()
        )
        self._pool = WorkerPool([_pickled(r) for r in self._plain], size=num_workers)

    @classmethod
    def from_registry(cls, registry: PluginRegistry, weights: Mapping[str, float]) -> Self:
        """Raises UserError for a name that no plugin provides."""
        return cls([registry.reward(name) for name in weights], weights)

    @property
    def floor(self) -> float:
        """The least that an episode can earn: what breaking the rules earns."""
        return self._floor

    async def score(self, episode: Episode) -> None:
        """Fill `rewards`, and `reward` with their weighted sum, or None when a weighted one is None.

        A reward that raises, takes too long, or gives no finite number in its range makes the episode an
        infrastructure error: then outcome and error are set, and `rewards` keeps what was scored before.
        The outcome of an episode that was scored is its player's to set.
        """
        episode.rewards = dict.fromkeys(self._weights)
        episode.reward = None
        for reward in self._inline:
            if not _record(episode, reward, _call(reward, episode)):
                return
        if self._plain and not await self._score_plain(episode):
            return
        for reward in self._async:
            if not _record(episode, reward, await _await(reward, episode)):
                return
        weighted = [(weight, episode.rewards[name]) for name, weight in self._weights.items() if weight]
        if all(score is not None for _, score in weighted):
            episode.reward = sum((weight * cast(float, score) for weight, score in weighted), 0.0)

    async def close(self) -> None:
        """End the worker processes; safe to call twice."""
        self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _score_plain(self, episode: Episode) -> bool:
        # Token ids and logprobs stay here: they are most of an episode's bytes, and a reward
        # that has to see them can be `async def`.
        light = dataclasses.replace(episode, turns=[])
        work = Work(functions=tuple(range(len(self._plain))), episode=light)
        try:
            answers = await self._pool.run(work, [reward.timeout_s for reward in self._plain])
        except InfraError as error:
            _fail(episode, "reward", type(error).__name__, str(error))
            return False
        return all(_record(episode, r, answer) for r, answer in zip(self._plain, answers, strict=False))


def _is_async(function: RewardFunction) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004  an object with an `async def __call__`
    )


def _pickled(reward: Reward) -> bytes:
    """The function by its name: the worker imports it anew."""
    advice = "define it with `def` at the top level of a module that can be imported, or make it `async def`"
    if getattr(reward.function, "__module__", None) == "__main__":
        raise UserError(f"the reward {reward.name!r} is defined in a script or notebook; {advice}")
    try:
        return pickle.dumps(reward.function)
    except Exception as error:  # plugin code: anything may come
        raise UserError(
            f"the reward {reward.name!r} can't be sent to a process: {error}; {advice}"
        ) from error


def _call(reward: Reward, episode: Episode) -> Answer:
    try:
        return Answer(score=as_score(reward.function(episode)))
    except Exception as error:  # plugin code: anything may come
        return failure(error)


async def _await(reward: Reward, episode: Episode) -> Answer:
    try:
        async with asyncio.timeout(reward.timeout_s) as limit:
            return Answer(score=as_score(await cast(Awaitable[Score], reward.function(episode))))
    except TimeoutError as error:
        if not limit.expired():
            return failure(error)
        return Answer(error_kind="TimeoutError", error=f"it took longer than {reward.timeout_s:g} s")
    except Exception as error:  # plugin code: anything may come
        return failure(error)


def _record(episode: Episode, reward: Reward, answer: Answer) -> bool:
    """Put an answer on the episode; False when it made the episode an infrastructure error."""
    source = f"reward:{reward.name}"
    if answer.error_kind:
        return _fail(episode, source, answer.error_kind, answer.error)
    score = answer.score
    if score is not None and not reward.low - RANGE_SLACK <= score <= reward.high + RANGE_SLACK:  # nan too
        message = f"it gave {score}; its range is {reward.low:g} to {reward.high:g}"
        return _fail(episode, source, "ValueError", message)
    episode.rewards[reward.name] = score
    return True


def _fail(episode: Episode, source: str, kind: str, message: str) -> bool:
    episode.outcome = Outcome.INFRA_ERROR
    episode.error = ErrorRecord(source=source, kind=kind, message=message)
    return False
