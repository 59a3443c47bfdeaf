"""The actor of a rollout worker: it opens what plays episodes on its host, and plays the groups that it is given."""

from __future__ import annotations

import asyncio
import logging
import pickle
import socket
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.actors.actor import ServiceActor
from agentgym.actors.caller import Caller
from agentgym.actors.endpoint import endpoint
from agentgym.actors.remote import Routes
from agentgym.errors import InfraError
from agentgym.generators.remote import RemoteGenerators
from agentgym.import_path import loaded_files
from agentgym.recipe import Recipe
from agentgym.rollout.garbage import swept
from agentgym.rollout.playing import GroupOrder, GroupPlayer, Turns, pack
from agentgym.rollout.worker import load_pickled
from agentgym.run.gym import Gym
from agentgym.run.settle import settled_elsewhere
from agentgym.runs.report import PlainReporter

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSetup:
    """What a worker opens. recipe: settled, and pickled. files: see `import_path.loaded_files`."""

    recipe: bytes
    files: Mapping[str, str]
    model_path: Path

    @classmethod
    def of(cls, recipe: Recipe, model_path: Path) -> WorkerSetup:
        return cls(recipe=pickle.dumps(recipe), files=loaded_files(), model_path=model_path.absolute())


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFigures:
    """Of one worker since it started. times_s: of its activity, by kind. generator: of its requests."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    sandbox: Mapping[str, float] = field(default_factory=dict)
    generator: Mapping[str, float] = field(default_factory=dict)


class RolloutWorker(ServiceActor):
    """Everything that an episode needs is opened here; tokens come from the generators without the controller."""

    answer_waits = 0.01  # a message costs the controller as much as 30 turns

    def __init__(self, name: str, setup: WorkerSetup) -> None:
        self._name = name
        self._setup = setup
        self._calls: dict[int, asyncio.Task[object]] = {}
        self._life: asyncio.Task[None] | None = None
        self._ends = asyncio.Event()
        self._followed = asyncio.Event()
        self._at = 0

    async def on_stop(self) -> None:
        self._ends.set()
        if self._life is not None:
            await asyncio.wait({self._life})

    @endpoint
    async def describe(self) -> str:
        """The name of this host."""
        return socket.gethostname()

    @endpoint
    async def open(self) -> None:
        """Open the environment, its rewards, the agent and the sandbox. Raises what they raise."""
        opened = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(opened), name="what plays episodes")
        await opened

    async def _live(self, opened: asyncio.Future[None]) -> None:
        """All of it in one task: some of what is opened must be closed by the task that opened it."""
        async with AsyncExitStack() as stack:
            try:
                await self._open(stack)
            except Exception as error:  # also of plugins
                opened.set_exception(error)
                return
            opened.set_result(None)
            await self._ends.wait()

    async def _open(self, stack: AsyncExitStack) -> None:
        setup = self._setup
        recipe = load_pickled(setup.recipe, setup.files)
        assert isinstance(recipe, Recipe)
        settled = settled_elsewhere(recipe, setup.model_path)
        self._gym = gym = await Gym.open(settled, PlainReporter(sys.stdout))
        stack.push_async_callback(gym.close)
        await stack.enter_async_context(swept())
        caller = await stack.enter_async_context(Caller())
        self._generators = RemoteGenerators(self._name, caller, recipe.generator)
        self._player = GroupPlayer(player=gym.player(self._generators))

    @endpoint
    async def follow(self, routes: Routes, at: int) -> None:
        """The generators' replicas that are up. at: counts the changes."""
        if at > self._at:
            self._generators.follow(routes)
            self._at = at
            self._followed.set()
            self._followed = asyncio.Event()

    @endpoint
    async def play(self, order: GroupOrder, number: int, at: int) -> bytes:
        """The finished group, as `pack` writes it. number: names the call for `cancel`.

        at: of the routes that it needs at least: a replica that is left out of them may hold older weights.
        """
        task = asyncio.current_task()
        assert task is not None
        self._calls[number] = task
        try:
            while self._at < at:
                await self._followed.wait()
            return pack(await self._player.play(order))
        finally:
            del self._calls[number]

    @endpoint
    async def cancel(self, number: int) -> None:
        """End a call whose caller is gone. Never raises."""
        if (task := self._calls.get(number)) is not None:
            task.cancel()

    @endpoint
    async def turns(self) -> Turns:
        """See `Rollouts.turns`."""
        return await self._player.turns()

    @endpoint
    async def figures(self) -> WorkerFigures:
        if self._life is None:
            raise InfraError(f"{self._name} has not opened its environment")
        return WorkerFigures(
            times_s=self._gym.activity.totals_s(),
            sandbox=self._gym.sandbox_metrics(),
            generator=self._generators.get_metrics() | {"demand": float(self._generators.demand)},
        )
