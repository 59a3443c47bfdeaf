"""Rewards as a service: replicas with processes, or GPUs, of their own, for judges and reward models."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.service import Service
from agentgym.errors import UserError
from agentgym.import_path import import_object
from agentgym.observed import record_metric
from agentgym.rewards import Reward, Score
from agentgym.types import Episode

ResponseReward: TypeAlias = Callable[..., Any]
"""`(prompt, response, target) -> float`, or `(episode) -> float | None` for `score`; plain or `async def`."""
HUNG = 70  # exit code of a replica whose function did not come back


class RewardActor(ServiceActor):
    """reward_functions: functions, objects that can be called, or import paths of either; a class is made without
    arguments. One with a method `setup` loads there, once for each replica. Plain functions run in threads.

    Everything is pickled by name: define it in a module that other processes can import.
    """

    def __init__(self, reward_functions: Sequence[str | ResponseReward]) -> None:
        self._given = tuple(reward_functions)
        self._in_threads = 0

    async def on_start(self) -> None:
        """Raises UserError for what can't be called."""
        if not self._given:
            raise UserError("RewardActor: no reward functions; give at least one")
        self._functions: dict[str, ResponseReward] = {}
        for given in self._given:
            found: Any = import_object(given) if isinstance(given, str) else given
            made: Any = found() if inspect.isclass(found) else found
            if not callable(made):
                raise UserError(f"RewardActor: {given!r} can't be called; give a function, or an object with __call__")
            if callable(setup := getattr(made, "setup", None)):
                loaded = await asyncio.to_thread(setup)
                if inspect.isawaitable(loaded):
                    await loaded
            name = getattr(made, "__name__", type(made).__name__)
            self._functions[f"{name}_{len(self._functions)}" if name in self._functions else name] = made

    @endpoint
    async def evaluate_response(self, prompt: str, response: str, target: str) -> float:
        """The mean of all functions; what each gives is recorded as the metric `reward/<its name>_mean`."""
        scores = await self._scores(prompt, response, target)
        for name, score in scores.items():
            record_metric(f"reward/{name}_mean", score)
        return sum(scores.values()) / len(scores)

    @endpoint
    async def evaluate_each(self, prompt: str, response: str, target: str) -> dict[str, float]:
        """What each function gives, by its name, in their order."""
        return await self._scores(prompt, response, target)

    async def _scores(self, *args: str) -> dict[str, float]:
        return {name: float(await self._call(one, *args)) for name, one in self._functions.items()}

    @endpoint
    async def score(self, episode: Episode) -> list[Score]:
        """What each function gives for an episode, in their order."""
        return [await self._call(one, episode) for one in self._functions.values()]

    @endpoint
    async def give_up(self) -> None:
        """End this process if a plain function still runs in it: nothing else stops a thread. It is started again."""
        if self._in_threads:
            os._exit(HUNG)

    async def _call(self, function: ResponseReward, *args: object) -> Any:
        if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
            return await function(*args)
        self._in_threads += 1
        try:
            return await asyncio.to_thread(function, *args)
        finally:
            self._in_threads -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardService:
    """What a loop calls. timeout_s: of one answer, retries on other replicas included.

    A plain function that takes longer costs its replica, which is replaced, and the caller an InfraError: what broke is
    never a zero.
    """

    service: Service[RewardActor]
    timeout_s: float = 60.0

    async def evaluate_response(self, prompt: str, response: str, target: str) -> float:
        call = RewardActor.evaluate_response
        return await self.service.route(call, prompt, response, target, timeout_s=self.timeout_s, abandon=_give_up)

    async def evaluate_each(self, prompt: str, response: str, target: str) -> dict[str, float]:
        """What each function gives, by its name."""
        call = RewardActor.evaluate_each
        return await self.service.route(call, prompt, response, target, timeout_s=self.timeout_s, abandon=_give_up)

    async def score(self, episode: Episode) -> list[Score]:
        """Scores an episode, which is sent without the tokens of its turns."""
        light = replace(episode, turns=[])
        return await self.service.route(RewardActor.score, light, timeout_s=self.timeout_s, abandon=_give_up)

    def as_reward(self, name: str, **settings: Any) -> Reward:
        """The first function as a reward of episodes. settings: of `Reward`, such as its range."""

        async def remote(episode: Episode) -> Score:
            return (await self.score(episode))[0]

        return Reward(name=name, function=remote, **{"timeout_s": 2 * self.timeout_s, **settings})


def _give_up(group: ProcessGroup[RewardActor]) -> None:
    group.broadcast(RewardActor.give_up)
