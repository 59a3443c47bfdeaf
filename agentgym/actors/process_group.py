"""The processes of one actor: started, called with a deadline, and reported dead as soon as they are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import select
import signal
from pathlib import Path
from typing import Any, Generic, TypeVar, TypeVarTuple

import psutil

from agentgym.actors.endpoint import Endpoint, LifecycleActor, endpoint_name
from agentgym.actors.options import ActorOptions
from agentgym.actors.runtime import ActorError, Runtime
from agentgym.errors import InfraError

log = logging.getLogger(__name__)

LOG_TAIL_BYTES = 2000
KILL_WAIT_S = 5.0
A = TypeVar("A", bound=LifecycleActor)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")
_titles = itertools.count()


class ProcessDied(InfraError):
    """A process or its actor died; its request may be made again elsewhere."""


class ProcessGroup(Generic[A]):
    """One actor on `options.procs` processes of this host.

    The kernel reports a death at once (through a pidfd), so no call waits for a dead process. An error that
    the actor's own code raises goes to the caller and never counts as a death.
    """

    def __init__(
        self, runtime: Runtime, name: str, actor_class: type[A], args: tuple[object, ...], options: ActorOptions
    ) -> None:
        self.name = name
        self.pids: list[int] = []
        self._actor_class = actor_class
        self._runtime = runtime
        self._pidfds: dict[int, int] = {}  # rank -> file descriptor
        self.dead: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done with the reason once any of the processes is dead or given up."""
        self._exited = asyncio.Event()  # every process
        self._stopping = False
        self._title = f"{name}#{next(_titles)}"
        self._mesh = runtime.spawn(
            name, title=self._title, procs=options.procs, environment=options.environment, imports=options.imports
        )
        self._actor = self._mesh.spawn(name, actor_class, *args)

    async def start(self, *, timeout_s: float) -> None:
        """Wait for the processes, then for the actor's own `start` on each of them.

        Raises what `start` raised, or ProcessDied.
        """
        infos = await self.call(LifecycleActor.probe, timeout_s=timeout_s)
        self.pids = [info.pid for info in infos]
        for rank, pid in enumerate(self.pids):
            self._watch(rank, pid)
        await self.call(LifecycleActor.start, timeout_s=timeout_s)

    def give_up(self, reason: str) -> None:
        """Count the group as dead: calls under way fail with ProcessDied, and no new one is taken."""
        if not self.dead.done():
            self.dead.set_result(reason)

    async def call(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None) -> list[R]:
        """Call an endpoint, given as `Class.method`, on every process; answers in rank order.

        Raises what the endpoint raised, ProcessDied, InfraError after timeout_s, or UserError for a method
        that is not an endpoint of the actor.
        """
        return [value for _, value in await self._race(method, "call", args, timeout_s)]

    async def call_one(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None) -> R:
        """Call an endpoint of a group with one process. Raises as `call` does."""
        answer: R = await self._race(method, "call_one", args, timeout_s)
        return answer

    def broadcast(self, method: Endpoint[A, *Ts, None], *args: *Ts) -> None:
        """Call an endpoint that never raises, without waiting for an answer."""
        name = endpoint_name(self._actor_class, method)
        if not self.dead.done():
            with contextlib.suppress(RuntimeError):
                getattr(self._actor, name).broadcast(*args)

    async def stop(self, *, timeout_s: float = 10.0) -> None:
        """End every process: through Monarch, then by SIGKILL if it hangs or takes too long."""
        self._stopping = True
        if self.dead.done():
            self._kill()  # the remaining processes of a dead group would not answer
        else:
            with contextlib.suppress(Exception):
                await self.call(LifecycleActor.finish, timeout_s=timeout_s)
        self.give_up("stopped")
        await self._runtime.stop(self._mesh, timeout_s=timeout_s)
        if not self.pids:  # stopped before its first answer
            for rank, pid in enumerate(_children(self._title)):
                self.pids.append(pid)
                self._watch(rank, pid)
        if self._pidfds and not await self._all_exited(KILL_WAIT_S):
            log.warning("%s did not stop; killing processes %s", self.name, self.pids)
            self._kill()
            await self._all_exited(KILL_WAIT_S)
        for rank in list(self._pidfds):
            self._unwatch(rank)

    async def _race(self, method: object, way: str, args: tuple[object, ...], timeout_s: float | None) -> Any:
        """The answer, or the death or the deadline, whichever comes first."""
        endpoint = endpoint_name(self._actor_class, method)
        if self.dead.done():
            raise ProcessDied(f"{self.name} is dead: {self.dead.result()}")
        try:
            answer = getattr(getattr(self._actor, endpoint), way)(*args).as_asyncio()
        except RuntimeError as error:  # Monarch refuses to send to a mesh that it has seen die
            raise self._died(error) from error
        # A cancelled caller does not read it, and asyncio would log a warning.
        answer.add_done_callback(lambda late: late.cancelled() or late.exception())
        await asyncio.wait({answer, self.dead}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return self._unwrap(endpoint, answer)
        if self.dead.done():
            raise ProcessDied(f"{self.name} died during {endpoint}: {self.dead.result()}")
        raise InfraError(f"{self.name} did not answer {endpoint} within {timeout_s} s")

    def _unwrap(self, endpoint: str, answer: asyncio.Future[R]) -> R:
        try:
            return answer.result()
        except ActorError as error:
            cause = error.exception
            if isinstance(cause, Exception):
                raise cause from error
            raise InfraError(f"{endpoint} of {self.name} was ended by {type(cause).__name__}") from error
        except RuntimeError as error:  # SupervisionError and its untyped relatives
            raise self._died(error) from error

    def _died(self, error: RuntimeError) -> ProcessDied:
        self._see_exits()  # on a busy event loop Monarch may report first; the kernel's report says more
        self.give_up(" ".join(str(error).split()))
        return ProcessDied(f"{self.name} is dead: {self.dead.result()}")

    def _see_exits(self) -> None:
        """Handle the exits that the event loop has not reported yet."""
        for rank, descriptor in list(self._pidfds.items()):
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if poller.poll(0):
                self._on_exit(rank)

    def _kill(self) -> None:
        for descriptor in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _watch(self, rank: int, pid: int) -> None:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            self._on_exit(rank)
            return
        self._pidfds[rank] = descriptor
        asyncio.get_running_loop().add_reader(descriptor, self._on_exit, rank)

    def _unwatch(self, rank: int) -> None:
        descriptor = self._pidfds.pop(rank)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def _on_exit(self, rank: int) -> None:
        how = "it no longer exists"
        if rank in self._pidfds:
            how = _how_it_ended(self._pidfds[rank])
            self._unwatch(rank)
        if not self._pidfds:
            self._exited.set()
        if not self._stopping:
            tail = _tail(self._runtime.log_path(self.name, rank))
            reason = f"process {self.pids[rank]} (rank {rank}) of {self.name} died: {how}"
            self.give_up(f"{reason}; its last output:\n{tail}" if tail else reason)

    async def _all_exited(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), timeout_s)
        return self._exited.is_set()


def _how_it_ended(descriptor: int) -> str:
    """Read the exit status without reaping the child, which may have been reaped already."""
    status = None
    with contextlib.suppress(OSError):
        status = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if status is None:
        return "its exit status is unknown"
    if status.si_code == os.CLD_EXITED:
        return f"exit code {status.si_status}"
    name = signal.Signals(status.si_status).name
    return f"killed by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")


def _children(title: str) -> list[int]:
    """Of the processes below this one, those with the title in their command line."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if title in child.cmdline():
                found.append(child.pid)
    return found


def _tail(path: Path | None) -> str:
    """The end of what a process printed; empty without a log."""
    if path is None:
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""
