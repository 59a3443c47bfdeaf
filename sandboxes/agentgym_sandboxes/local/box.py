"""A box: a process with a warm Python that takes the order for one call, and is thrown away."""

from __future__ import annotations

import array
import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypedDict

from agentgym.sandbox import SandboxLost, SandboxUnavailable
from agentgym_sandboxes.agent.job import Hit
from agentgym_sandboxes.host.bundle import agent_argument
from agentgym_sandboxes.local.enclosure import Enclosure

log = logging.getLogger(__name__)

MAX_REPORT_BYTES = 4096
MAX_SAID_BYTES = 2000
PATIENCE_S = 10.0  # to end: what still lives then makes the box dirty


class BoxGone(SandboxLost):
    """The box died while it waited: its call has not begun."""


class End(TypedDict):
    """How the process of a call ended. status: as wait gives it; None when it could not be made.

    disk: the limit on files that it may have reached, if there is one.
    """

    status: int | None
    cpu_s: float
    memory_kib: int
    disk: Hit | None


class Box:
    """One waiting process. `start` makes one; `order` begins its only call; `end` leaves nothing of it."""

    def __init__(self, enclosure: Enclosure, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self.enclosure = enclosure
        self.start_s = 0.0
        self._process = process
        self._control = control
        self._on_end: Callable[[End | None], None] | None = None
        self._gone = False
        self._ending: asyncio.Task[bool] | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def start(cls, enclosure: Enclosure, python: str, timeout_s: float) -> Box:
        """Start one and wait until it is ready. Raises SandboxUnavailable with what it printed."""
        began_s = time.monotonic()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        errors = os.memfd_create("errors")
        try:
            argument = agent_argument("solo")
            command, fds = enclosure.command([python, "-s", "-c", argument, str(theirs.fileno())], theirs.fileno())
            # From this thread, which outlives it: bubblewrap's children die with the thread that started them.
            process = subprocess.Popen(  # noqa: ASYNC220
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                env=dict(enclosure.env),
                cwd=enclosure.folder,
                pass_fds=fds,
                start_new_session=True,  # a Ctrl-C is for the owner, who ends them in order
            )
        except OSError as error:
            ours.close()
            os.close(errors)
            enclosure.remove()
            raise SandboxUnavailable(f"a sandbox could not be started: {error}") from error
        finally:
            theirs.close()
        box = cls(enclosure, process, ours)
        try:
            async with asyncio.timeout(timeout_s):
                hello = await box._first_message()
            if not hello:
                raise SandboxUnavailable(f"a sandbox ended at its start: {_said(errors)}")
        except TimeoutError:
            await box.end()
            raise SandboxUnavailable(
                f"a sandbox was not ready within {timeout_s:g} s (start_timeout_s): {_said(errors)}"
            ) from None
        except BaseException:
            await box.end()
            raise
        finally:
            os.close(errors)
        box.start_s = time.monotonic() - began_s
        return box

    @property
    def alive(self) -> bool:
        return not self._gone

    def watch(self, on_gone: Callable[[], None] | None) -> None:
        """Call on_gone when it dies while it waits; None: no longer."""
        self._on_end = (lambda end: on_gone()) if on_gone is not None else None

    def order(
        self, op: str, limits: dict[str, float], fds: Sequence[int], on_end: Callable[[End | None], None]
    ) -> None:
        """Begin the call. on_end: called once, with None when the box died without a report.

        Raises BoxGone.
        """
        self._on_end = on_end
        if self._gone:
            raise BoxGone("the sandbox died before its call")
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        try:
            self._control.sendmsg([json.dumps({"op": op, "limits": limits}).encode()], [rights])
        except OSError as error:
            raise BoxGone(f"the sandbox did not take its call: {error}") from error

    async def end(self) -> bool:
        """Kill all of it and wait until it is gone; False when that took too long. May be called again.

        A call that it still has fails.
        """
        if self._ending is None:
            on_end, self._on_end = self._on_end, None
            if on_end is not None:
                on_end(None)
            self._loop.remove_reader(self._control)
            self.enclosure.kill(self._process.pid)
            self._ending = asyncio.create_task(self._vanish())
        return await asyncio.shield(self._ending)

    async def _first_message(self) -> bytes:
        first: asyncio.Future[bytes] = self._loop.create_future()

        def on_readable() -> None:
            data = _receive(self._control)
            if not data:
                self._gone = True
                self._loop.remove_reader(self._control)
            if not first.done():
                first.set_result(data)
            elif self._on_end is not None:
                on_end, self._on_end = self._on_end, None
                on_end(_read_end(data))

        self._loop.add_reader(self._control, on_readable)
        return await first

    async def _vanish(self) -> bool:
        """Wait for the process, then for the rest of its enclosure."""
        try:
            await self._wait_for_process()
            self._control.close()
            deadline_s, pause_s = time.monotonic() + PATIENCE_S, 0.001
            while not self.enclosure.remove():
                if time.monotonic() > deadline_s:
                    log.error("a sandbox could not be removed: process %d", self._process.pid)
                    return False
                await asyncio.sleep(pause_s)
                pause_s = min(0.05, 1.5 * pause_s)
        except TimeoutError:
            log.error("a sandbox could not be killed: process %d", self._process.pid)
            return False
        return True

    async def _wait_for_process(self) -> None:
        """Raises TimeoutError."""
        if self._process.poll() is None:
            pidfd = os.pidfd_open(self._process.pid)
            ended = asyncio.Event()
            self._loop.add_reader(pidfd, ended.set)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await ended.wait()
            finally:
                self._loop.remove_reader(pidfd)
                os.close(pidfd)
            self._process.wait()


def _receive(control: socket.socket) -> bytes:
    with contextlib.suppress(OSError):
        return control.recv(MAX_REPORT_BYTES)
    return b""


def _read_end(data: bytes) -> End | None:
    """The report of a call's end; None when the box is gone."""
    if not data:
        return None
    said = json.loads(data)
    if "fork_error" in said:
        return End(status=None, cpu_s=0.0, memory_kib=0, disk=None)
    disk = Hit(*said["disk"]) if said["disk"] is not None else None
    return End(status=said["status"], cpu_s=said["cpu_s"], memory_kib=said["memory_kib"], disk=disk)


def _said(errors: int) -> str:
    data = os.pread(errors, 1 << 16, 0)[-MAX_SAID_BYTES:]
    return data.decode("utf-8", "replace").strip() or "it printed nothing"
