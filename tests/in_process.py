"""A launcher whose processes are objects of the test's own process: a whole run in a second or two.

Everything above Monarch is real: groups, services, trainer, generators, weights. What a process is to the kernel (its
number, its death) is a `sleep` that belongs to each actor. Monarch's messages are method calls; arguments and answers
are pickled as always. Choose it in a recipe with `launcher.name=in_process:InProcess`. Groups of one process only: the
actors share one environment and one torch.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.actors.endpoint import LifecycleActor, ProcessInfo
from agentgym.actors.launchers import Launcher
from agentgym.actors.process_id import ProcessId

SHARED = ("RANK", "WORLD_SIZE", "LOCAL_RANK")  # variables of a process that its actor reads later


@dataclass(frozen=True, slots=True, kw_only=True)
class InProcess(Launcher):
    """This process is the host, and all of its processes."""

    @asynccontextmanager
    async def hosts(self, log_dir: Path | None) -> AsyncIterator[Sequence[Any]]:
        before = {name: os.environ.get(name) for name in SHARED}
        host = HereHost()
        try:
            yield [host]
        finally:
            for mesh in host.meshes:
                mesh.end()
            for name, value in before.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value


@dataclass(slots=True)
class HereHost:
    """What a launcher gives, as far as `Runtime` uses it."""

    meshes: list[HereProcess] = field(default_factory=list)

    def spawn_procs(
        self, *, per_host: Mapping[str, int], name: str, bootstrap: Callable[[], None] | None, bootstrap_command: Any
    ) -> HereProcess:
        assert per_host == {"procs": 1}, "one process each"
        env = bootstrap_command({"procs": 0}).env
        os.environ.update({key: env[key] for key in SHARED if key in env})
        if bootstrap is not None:
            bootstrap()
        self.meshes.append(mesh := HereProcess(subprocess.Popen(["sleep", "infinity"])))
        return mesh


@dataclass(slots=True)
class HereProcess:
    """A mesh of one process. Its `sleep` is what can be killed."""

    process: subprocess.Popen[bytes]
    actors: list[LifecycleActor] = field(default_factory=list)

    def spawn(self, name: str, actor_class: type[LifecycleActor], *args: object, **named: object) -> HereActor:
        args, named = pickle.loads(pickle.dumps((args, named)))
        self.actors.append(actor := actor_class(*args, **named))
        return HereActor(actor, self.process.pid)

    def stop(self) -> Waited:
        self.end()
        return Waited(self._stopped())

    async def _stopped(self) -> None:
        """Of an actor that was killed, its threads end here."""
        for actor in self.actors:
            await actor.on_stop()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(slots=True, weakref_slot=True)
class HereActor:
    """A mesh of one actor: its endpoints are attributes. A pickle of it refers to the same one."""

    actor: LifecycleActor
    pid: int

    def __post_init__(self) -> None:
        _actors[self.pid] = self

    def __reduce__(self) -> tuple[Callable[[int], HereActor], tuple[int]]:
        return known, (self.pid,)

    def __getattr__(self, name: str) -> HereEndpoint:
        return HereEndpoint(self.actor, self.pid, name)


@dataclass(slots=True)
class HereEndpoint:
    """The calls that `ProcessGroup` and `Runtime` make of an endpoint of Monarch."""

    actor: LifecycleActor
    pid: int
    name: str

    def call(self) -> Waited:
        async def probed() -> list[tuple[int, ProcessInfo]]:
            info = ProcessInfo(process=ProcessId.of(self.pid), version=self.actor.current_version())
            return [(0, info)]

        return Waited(probed() if self.name == "probe" else self._made())

    def broadcast(self, *args: object) -> None:
        background(self._made(*args))

    def _send(self, args: tuple[str, list[Any]], kwargs: Mapping[str, object], port: Any, selection: str) -> None:
        """What `monarch.actor.send` calls."""
        from monarch.actor import Port, context

        caller, calls = args
        answers = Port(port, context().actor_instance._as_rust(), None)
        background(getattr(type(self.actor), self.name)._method(self.actor, answers, caller, calls))

    async def _made(self, *args: object) -> object:
        return await getattr(type(self.actor), self.name).plain_method(self.actor, *args)


@dataclass(slots=True)
class Waited:
    """Monarch's futures."""

    coroutine: Any

    def as_asyncio(self) -> asyncio.Task[Any]:
        return background(self.coroutine)


_actors: weakref.WeakValueDictionary[int, HereActor] = weakref.WeakValueDictionary()
_running: set[asyncio.Task[Any]] = set()


def known(pid: int) -> HereActor:
    return _actors[pid]


def background(coroutine: Any) -> asyncio.Task[Any]:
    task = asyncio.ensure_future(coroutine)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return task


class NoProcesses:
    """A process group that only keeps what it is called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self, *, timeout_s: float) -> None:
        self.calls.append("start")

    def give_up(self, reason: str) -> None:
        self.calls.append("give_up")

    async def stop(self) -> None:
        self.calls.append("stop")
