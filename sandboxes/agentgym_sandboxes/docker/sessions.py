"""Sessions in Docker: each leases a container of its own, which no other episode ever sees."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

from agentgym.errors import UserError
from agentgym.sandbox import (
    DEFAULT_LIMITS,
    FileInfo,
    FileRefused,
    Limits,
    RunResult,
    RunStatus,
    SandboxDirty,
    SandboxLost,
    Session,
)
from agentgym.types import SandboxSpec
from agentgym_sandboxes.agent.frames import Frame, Header
from agentgym_sandboxes.docker import counts
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.container import Container
from agentgym_sandboxes.docker.failures import ImageUnusable
from agentgym_sandboxes.docker.machine import Machine, opening
from agentgym_sandboxes.docker.talks import Talks
from agentgym_sandboxes.docker.task_machine import DockerMachine
from agentgym_sandboxes.host.answers import NO_ANSWER
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.running import result_of, wire_limits

BACKSTOP_S = 12.0  # past a call's wall limit: the agent has 1 s to interrupt, 3 s to kill
FILES_TIMEOUT_S = 75.0
MAX_BYTES = 64 << 20  # of one file or one snapshot


class DockerSession(Session):
    """A session in a leased container. Its calls take turns, in the order in which they were made."""

    def __init__(
        self,
        container: Container,
        memory_mib: int,
        meter: CallMeter | None = None,
        forward: Callable[[str], Awaitable[int]] | None = None,
    ) -> None:
        """forward: see `SessionNetworks.forward`."""
        self._container = container
        self._lead = forward
        self._led = ("", 0)  # to which target, and its port
        self._memory_mib = memory_mib
        self._machine: Machine | None = None
        self._task_machine: DockerMachine | None = None
        self._talks = Talks(container, self.exec_with)
        self._meter = meter or CallMeter()
        self._turns = asyncio.Lock()
        self._home = ""

    async def open(self, config: DockerConfig, env: Mapping[str, str], spec: SandboxSpec) -> None:
        """env: of its processes, besides what the image has. Raises SandboxUnavailable for an image's unknown user."""
        machine = self._machine = self._container.machine
        header = opening(config) if machine is None else machine.opening(config, spec)
        self._memory_mib = cast(int, header["memory_mib"])
        header["env"] = {**cast("dict[str, str]", header["env"]), **env}
        frame = await self._container.ask("session.open", header, (), config.start_timeout_s)
        if machine is not None and "refused" in frame.header:
            raise ImageUnusable(f"image {machine.request.name} can't hold a session: {frame.header['refused']}")
        self._home = str(frame.header.get("home"))
        if machine is not None and machine.request.profile == "task":
            self._task_machine = self._container.task_machine(
                machine.image, spec.disk_mib, self.exec_with, self._talks.open, self.end_processes
            )

    async def close(self) -> None:
        """End what it speaks with; the container goes with its lease."""
        await self._talks.close()

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run code in the session's Python."""
        return await self._call("run", [_bytes(code), _bytes(stdin)], limits)

    async def exec(
        self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", limits: Limits = DEFAULT_LIMITS
    ) -> RunResult:
        """Run a command. One that is not there exits with 127, as in a shell."""
        return await self.exec_with({}, command, stdin, folder, limits)

    async def exec_with(
        self, more: Mapping[str, object], command: str | Sequence[str], stdin: str, folder: str, limits: Limits
    ) -> RunResult:
        """more: `user` and `env`, in a task's container. Raises UserError for a user that is not there."""
        argv = ["sh", "-c", command] if isinstance(command, str) else list(command)
        if not argv or any("\0" in part for part in [*argv, folder]):
            raise FileRefused(f"{command!r} in {folder!r}: a command has a name, and no NUL byte")
        return await self._call("exec", [_json({**more, "argv": argv, "folder": folder}), _bytes(stdin)], limits)

    @property
    def machine(self) -> DockerMachine:
        """Raises UserError for a session of another profile than 'task'."""
        if self._task_machine is None:
            raise UserError(
                "a session of profile 'hardened' has no machine of its own; give SandboxSpec(profile='task')"
            )
        return self._task_machine

    async def end_processes(self) -> None:
        """Raises SandboxDirty for what can't be killed."""
        async with self._turns:
            await self._ask("session.end", {}, (), BACKSTOP_S)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        """A regular file of at most max_bytes, and at most 64 MiB. Raises FileRefused."""
        max_bytes = min(max_bytes, MAX_BYTES)
        return _bounded(await self._files({"do": "read", "path": path, "max_bytes": max_bytes}), max_bytes)

    async def write(self, path: str, data: bytes) -> None:
        """Make or replace a regular file of at most 64 MiB. Raises FileRefused, and UserError for text."""
        if isinstance(data, str):  # what a model wrote, as a rule
            raise UserError(f"write takes bytes, and was given text for {path!r}; give text.encode()")
        if len(data) > MAX_BYTES:
            raise FileRefused(f"{path!r} has {len(data)} bytes; at most {MAX_BYTES} are written at a time")
        await self._files({"do": "write", "path": path}, data)

    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        """All below a folder. Raises FileRefused."""
        listed = await self._files({"do": "list", "path": path})
        try:
            return tuple(_file_info(*found) for found in json.loads(listed))
        except (ValueError, TypeError, RecursionError) as error:
            raise SandboxLost(NO_ANSWER) from error

    async def reset(self) -> None:
        """Makes the sandbox as new: no process, no name, no file is left. Raises SandboxDirty when that fails."""
        self._check_resets("reset")
        async with self._turns:
            await self._reset()

    async def snapshot(self) -> bytes:
        """The work folder as a tar archive of at most 64 MiB. Raises FileRefused."""
        return _bounded(await self._files({"do": "snapshot"}), MAX_BYTES)

    async def restore(self, snapshot: bytes) -> None:
        """Put a snapshot in place of all files. A bad one is refused before anything is removed."""
        if len(snapshot) > MAX_BYTES + (1 << 20):
            raise FileRefused(f"the snapshot has {len(snapshot)} bytes; at most {MAX_BYTES} are allowed")
        self._check_resets("restore")
        async with self._turns:
            await self._ask_files({"do": "check"}, snapshot)
            await self._reset()
            await self._ask_files({"do": "restore"}, snapshot)

    async def forward(self, target: str) -> int:
        """The port on 127.0.0.1, in the session, that leads to a server of this machine. Raises UserError."""
        async with self._turns:
            known, port = self._led
            if known not in ("", target):
                raise UserError(f"this session's port leads to {known}, so it can't lead to {target}")
            if not known:
                if self._lead is None:
                    raise UserError(f"this sandbox gives a session no way to {target}")
                port = await self._lead(target)
                self._led = (target, port)
            return port

    def _check_resets(self, what: str) -> None:
        if self._machine is not None and self._machine.request.profile == "task":
            raise UserError(f"no {what} in a session of profile 'task': it may change any file; open another session")

    async def _call(self, kind: str, blobs: Sequence[bytes], limits: Limits) -> RunResult:
        if kind == "exec" and limits.reserves:  # no limit on addresses: the container's is on memory
            limits, most_mib = replace(limits, memory_mib=1 << 24), 1 << 24
        else:
            most_mib = self._memory_mib
        with self._meter.counting_failures():
            async with self._turns:
                began_s = time.monotonic()
                frame = await self._ask(
                    f"session.{kind}", {"limits": wire_limits(limits, most_mib)}, blobs, limits.wall_s + BACKSTOP_S
                )
            result = result_of(frame)
        self._meter.answered(result.status, queue_s=None, wall_s=time.monotonic() - began_s)
        if result.status is RunStatus.OOM:
            self._meter.counts[counts.OOM_KILLS] += 1
        return result

    async def _files(self, request: Mapping[str, object], data: bytes = b"") -> bytes:
        async with self._turns:
            return await self._ask_files(request, data)

    async def _ask_files(self, request: Mapping[str, object], data: bytes) -> bytes:
        frame = await self._ask("session.files", {}, [_json(request), data], FILES_TIMEOUT_S)
        refused = frame.header.get("refused")
        if refused is not None:
            raise FileRefused(str(refused))
        if not frame.blobs:
            raise SandboxLost(NO_ANSWER)
        return frame.blobs[0]

    async def _reset(self) -> None:
        await self._ask("session.reset", {}, (), BACKSTOP_S)

    async def _ask(self, op: str, header: Header, blobs: Sequence[bytes], timeout_s: float) -> Frame:
        frame = await self._container.ask(op, header, blobs, timeout_s, cancel="session.cancel")
        if op == "session.exec" and "refused" in frame.header:
            raise UserError(str(frame.header["refused"]))
        reason = frame.header.get("reason", "failed")
        if reason == "no_python" and self._machine is not None:
            raise UserError(
                f"the image {self._machine.request.name} has no python3 in its PATH, which `run` takes; "
                "call `exec`, or name an image with Python 3.9 or later"
            )
        if reason == "dirty":
            self._container.give_up("a session left something that could not be removed")
            raise SandboxDirty(f"container {self._container.name}: {self._container.lost}")
        if reason in ("no_process", "failed"):
            self._container.give_up("no process could be run in it")
            raise SandboxLost(f"container {self._container.name}: {self._container.lost}")
        return frame


def _file_info(path: object, size: object, is_folder: object) -> FileInfo:
    """Raises ValueError for what no work folder holds: a caller may put the files below a folder of its own."""
    if not (isinstance(path, str) and type(size) is int and size >= 0 and isinstance(is_folder, bool)):
        raise ValueError(NO_ANSWER)
    path.encode()  # raises for what is not text
    if "\0" in path or any(step in f"/{path}/" for step in ("//", "/./", "/../")):
        raise ValueError(NO_ANSWER)
    return FileInfo(path=path, size=size, is_folder=is_folder)


def _bounded(data: bytes, max_bytes: int) -> bytes:
    if len(data) > max_bytes:
        raise SandboxLost(NO_ANSWER)
    return data


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
