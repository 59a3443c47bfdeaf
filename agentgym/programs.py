"""What an agent starts programs with: limits, a clean environment, and an end that includes what they started.

`Program` runs one program. Agents that keep processes use the parts: `tagged`, `limited`, `kill_all`,
`has_children`, `Tail`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from agentgym.agents import AgentFailed
from agentgym.errors import InfraError
from agentgym.held_loop import waiting_for
from agentgym.killable.process import exit_reason

__all__ = ["KILL_S", "Program", "Tail", "exit_reason", "has_children", "kill_all", "limited", "tagged", "waiting_for"]

INHERITED: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
TAG: Final = "AGENTGYM_AGENT"  # a variable that all descendants of a process inherit, also those that leave its group
KILL_S: Final = 5.0
"""Seconds that `kill_all` may take; a process that the kernel cannot end holds nothing up any longer."""
MAX_OUTPUT_BYTES: Final = 1 << 20  # that are kept of a program's standard output
MAX_ERRORS_BYTES: Final = 8000
LAUNCH: Final = str(Path(__file__).with_name("killable") / "launch.py")


class Program:
    """One program that an agent starts, in a session of its own. `run` starts it once.

    argv: the program and its arguments; PATH finds it. folder: where it starts. environ: its variables besides `PATH`
    and the like, see `tagged`. stdin: a file that is its standard input; None is an empty one. memory_mib: of each of
    its processes, kept by the kernel; 0 is no limit. output_mib: MiB that it may write to both of its outputs together.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        folder: Path,
        environ: Mapping[str, str],
        stdin: Path | None = None,
        memory_mib: int = 0,
        output_mib: int = 16,
    ) -> None:
        self.exit_code: int | None = None
        """As `subprocess` has it: -9 for what SIGKILL ended; None before the end."""
        self._argv, self._folder, self._stdin = argv, folder, stdin
        self._environ, self._memory_mib, self._output_mib = environ, memory_mib, output_mib
        self._watch = _Watch(output_mib << 20)

    @property
    def output(self) -> str:
        """The end of what it wrote to standard output so far, at most 1 MiB."""
        return self._watch.out.text()

    @property
    def errors(self) -> str:
        """The end of what it wrote to standard error so far, at most 8,000 bytes."""
        return self._watch.err.text()

    async def run(self, time_s: float = 0.0) -> str:
        """Run it to its end; returns `output`. time_s: seconds that it may take; 0 is no limit.

        However this ends, also cancelled, the program and everything that it started has ended before: its process
        group, and on Linux what left the group. Raises AgentFailed for what the program did wrong (exit, time_limit,
        output_limit, or arguments that the system does not take), InfraError when no process could be started.
        """
        tag, environ = tagged(self._environ)
        try:
            with (self._stdin or Path(os.devnull)).open("rb") as stdin:
                transport, watch = await asyncio.get_running_loop().subprocess_exec(
                    lambda: self._watch,
                    *limited(self._argv, memory_mib=self._memory_mib),
                    cwd=self._folder,
                    env=environ,
                    stdin=stdin,
                    start_new_session=True,  # so that a Ctrl-C is ours to handle, and its group can be killed
                )
        except ValueError as error:
            raise AgentFailed("arguments", f"an argument or variable of it has a null character: {error}") from error
        except OSError as error:
            if error.errno == errno.E2BIG:
                longest = max(len(os.fsencode(word)) for word in self._argv)
                message = f"its longest argument has {longest} bytes, too long for this system; give it as a file"
                raise AgentFailed("arguments", message) from error
            raise InfraError(f"no process could be started for an agent: {error}") from error
        try:
            await self._until_ended(time_s)
        finally:
            running = transport.get_returncode() is None
            await asyncio.to_thread(kill_all, transport.get_pid() if running else None, tag)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(watch.closed.wait(), KILL_S)  # what is in the pipes yet
            self.exit_code = transport.get_returncode()
            transport.close()
        if self.exit_code:
            raise AgentFailed("exit", f"it {exit_reason(self.exit_code)}; it wrote: {self.errors[-1000:]}")
        return self.output

    async def _until_ended(self, time_s: float) -> None:
        """Waits until the program has ended, though its children may hold its outputs open, or has passed a limit."""
        try:
            async with asyncio.timeout(time_s or None):
                await self._watch.over.wait()
        except TimeoutError:
            raise AgentFailed("time_limit", f"it took longer than time_s = {time_s:g}") from None
        if self._watch.too_much:
            raise AgentFailed("output_limit", f"it wrote more than output_mib = {self._output_mib}")


def limited(argv: Sequence[str], *, memory_mib: int) -> list[str]:
    """The words that start a program within limits that the kernel keeps.

    Each of its processes has at most so much memory, in MiB (0 is no limit), and writes no core; on Linux the program
    is killed when this process ends.
    """
    return [sys.executable, "-I", "-S", LAUNCH, str(os.getpid()), str(memory_mib << 20), *argv]


def tagged(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A tag for a new process, and its environment: what every program needs, and what is given.

    Nothing else of ours is passed on: the keys of the user's own accounts are not the agent's.
    """
    tag = secrets.token_hex(12)
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return tag, {**inherited, **environ, TAG: tag}


def kill_all(leader: int | None, tag: str) -> None:
    """Kill a process with its group, and all others that carry its tag. The caller waits for it.

    leader: None once it was waited for: its number may be another's by now.
    """
    if leader is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        found, unclear = _carriers(tag)
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if not found and not unclear:
            return
        time.sleep(0.001)


def _carriers(tag: str) -> tuple[list[int], bool]:
    """Living processes with the tag, and whether one is just starting or ending, so that it can't be told of it yet.

    None where the system does not tell.
    """
    if sys.platform != "linux":
        return [], False
    sign, found, unclear = f"{TAG}={tag}".encode(), [], False
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone, or another user's
                environ = _memory(folder / "environ")
                if sign in environ.split(b"\0"):
                    found.append(int(folder.name))
                unclear = unclear or (not environ and _is_between(folder))
    return found, unclear


def _memory(file: Path) -> bytes:
    """What a file says that is read from a process's memory: nothing when it has none (any more)."""
    try:
        return file.read_bytes()
    except ProcessLookupError:
        return b""


def _is_between(folder: Path) -> bool:
    """Whether a process without an environment is in the midst of an exec or of its end, and not a kernel's thread."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    if state in "ZX" or parent in ("0", "2"):
        return False
    return not _memory(folder / "cmdline") or bool(_memory(folder / "environ"))  # its exec may have ended just now


def has_children(pid: int) -> bool:
    """Whether a process has children of its own; false where the system does not tell."""
    try:
        return any(task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False


class Tail:
    """The end of a text that is written in pieces. num_bytes: of all that was written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        self._kept += piece
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: -self._max_bytes]

    def text(self) -> str:
        kept = bytes(self._kept[-self._max_bytes :])
        cut = self.num_bytes - len(kept)
        return (f"[{cut} bytes before this]\n" if cut else "") + kept.decode("utf-8", "replace")


class _Watch(asyncio.SubprocessProtocol):
    """What a program writes, and its end. over: it has ended, or written too much. closed: nothing more will come."""

    def __init__(self, max_bytes: int) -> None:
        self.out, self.err = Tail(MAX_OUTPUT_BYTES), Tail(MAX_ERRORS_BYTES)
        self.over, self.closed = asyncio.Event(), asyncio.Event()
        self.too_much = False
        self._max_bytes = max_bytes

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        (self.out if fd == 1 else self.err).add(data)
        if self.out.num_bytes + self.err.num_bytes > self._max_bytes:
            self.too_much = True
            self.over.set()

    def process_exited(self) -> None:
        self.over.set()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()
