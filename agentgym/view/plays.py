"""Environments played by hand: a few at once, each with limits, in a thread of their own.

What an environment or a sandbox blocks there does not block the page.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.routing import Route

from agentgym.hooks import PluginRegistry
from agentgym.tables.environments import MAX_TASKS, build, env_json, env_rows, find_task
from agentgym.tables.episode_search import whole
from agentgym.tables.problems import Problem
from agentgym.view.play import IDLE_S, Play, read_turn

MAX_PLAYS = 4
KEPT = 32  # plays that ended
START_S = 120.0  # a sandbox may have to start
T = TypeVar("T")


class Plays:
    """registry: finds the environments, when they are first asked for. allowed: import paths of others."""

    def __init__(
        self, registry: Callable[[], PluginRegistry], allowed: Sequence[str] = (), *, idle_s: float = IDLE_S
    ) -> None:
        self._find, self._allowed, self._idle_s = registry, tuple(allowed), idle_s
        self._registry: PluginRegistry | None = None
        self._plays: dict[str, Play] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._count = 0

    @property
    def registry(self) -> PluginRegistry:
        with self._lock:
            if self._registry is None:
                self._registry = self._find()
            return self._registry

    def envs(self, request: Request) -> Any:
        return {"envs": env_rows(self.registry, self._allowed), "can_play": True}

    def env(self, request: Request) -> Any:
        asked = request.query_params
        count, offset = whole(asked, "n", 20, 0, MAX_TASKS), whole(asked, "offset", 0, 0, 100_000)
        name = request.path_params["name"]
        environment = build(self.registry, self._allowed, name, {})
        return env_json(self.registry, environment, name, split=asked.get("split", "test"), count=count, offset=offset)

    def all(self, request: Request) -> Any:
        return {"plays": [play.as_json() for play in self._plays.values()]}

    def one(self, request: Request) -> Any:
        return self._asked(request).as_json()

    async def begin(self, request: Request, body: Mapping[str, Any]) -> Any:
        """Start the task of an environment; answers when it has started, or could not."""
        options = body.get("options", {})
        seed, task_id = body.get("seed", 0), body.get("task_id", "")
        if not isinstance(options, dict) or not isinstance(seed, int) or not isinstance(task_id, str):
            raise Problem("invalid", 'give {"env": "...", "task_id": "...", "split": "test", "seed": 0, "options": {}}')

        def prepare() -> tuple[Any, Any]:
            environment = build(self.registry, self._allowed, str(body.get("env", "")), options)
            return environment, find_task(environment, str(body.get("split", "test")), task_id)

        environment, task = await asyncio.to_thread(prepare)
        return (await self._in_loop(self._begin(str(body["env"]), environment, task, seed))).as_json()

    async def say(self, request: Request, body: Mapping[str, Any]) -> Any:
        play, said = self._asked(request), read_turn(body)
        await self._in_loop(play.say(said))
        return play.as_json()

    async def end(self, request: Request, body: Mapping[str, Any]) -> Any:
        play = self._asked(request)
        await self._in_loop(self._end(play))
        return {"ended": True}

    def routes(self, reading: Callable[..., Any], changing: Callable[..., Any]) -> list[Route]:
        one = "/api/plays/{play}"
        return [
            Route("/api/envs", reading(self.envs)),
            Route("/api/envs/{name:path}", reading(self.env)),
            Route("/api/plays", reading(self.all)),
            Route("/api/plays", changing(self.begin, 201), methods=["POST"]),
            Route(one, reading(self.one)),
            Route(one, changing(self.end, 200), methods=["DELETE"]),
            Route(f"{one}/say", changing(self.say, 200), methods=["POST"]),
        ]

    async def close(self) -> None:
        """End all plays, and the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None:
            return
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._end_all(), loop))
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)

    async def _begin(self, env: str, environment: Any, task: Any, seed: int) -> Play:
        active = [play for play in self._plays.values() if not play.done]
        if len(active) >= MAX_PLAYS:
            raise Problem("too_many", f"{MAX_PLAYS} plays are open: end one of {', '.join(play.id for play in active)}")
        for old in [play.id for play in self._plays.values() if play.done][: max(0, len(self._plays) - KEPT)]:
            del self._plays[old]
        self._count += 1
        play = Play(
            id=f"p{self._count}", env=env, environment=environment, task=task, seed=seed, registry=self.registry,
            idle_s=self._idle_s,
        )  # fmt: skip
        self._plays[play.id] = play
        task_of_play = asyncio.create_task(play.run())
        self._tasks[play.id] = task_of_play
        task_of_play.add_done_callback(lambda task: self._tasks.pop(play.id, None))
        try:
            async with asyncio.timeout(START_S):
                await play.started.wait()
        except TimeoutError:
            await self._end(play)
            raise Problem("broken", f"{env} did not start within {START_S:.0f} s") from None
        return play

    async def _end(self, play: Play) -> None:
        task = self._tasks.get(play.id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _end_all(self) -> None:
        for play in [*self._plays.values()]:
            await self._end(play)

    async def _in_loop(self, work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._started_loop()))

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="agentgym-plays", daemon=True)
                self._thread.start()
            return self._loop

    def _asked(self, request: Request) -> Play:
        play = self._plays.get(name := request.path_params["play"])
        if play is None:
            raise Problem.unknown("play", name, self._plays)
        return play


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
