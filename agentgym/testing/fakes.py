"""Fakes that keep everything in memory: a sandbox with its sessions, and what an agent gets to play an episode."""

from __future__ import annotations

import asyncio
import io
import json
import posixpath
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Self, TypeAlias

from agentgym.agents import AgentContext
from agentgym.env import Reply
from agentgym.errors import UserError
from agentgym.sandbox import (
    Capabilities,
    CaseResult,
    FileInfo,
    FileRefused,
    GradeRequest,
    Limits,
    RunResult,
    RunStatus,
    SandboxBackend,
    SandboxUnavailable,
    Session,
    Verdict,
)
from agentgym.tools import Schema
from agentgym.types import Json, Message, SandboxSpec

Printed: TypeAlias = str | RunResult | Exception
"""What a fake does with a program: it prints this, ends so, or raises."""
Answer: TypeAlias = Printed | Callable[[str, str], Printed]
"""The same for every program, or a function of the program and its standard input."""
Judge: TypeAlias = bool | Verdict | Exception | Callable[[GradeRequest], bool | Verdict]
NO_LIMITS_GIVEN = Limits()
ABLE = Capabilities(
    backend="fake",
    detail="runs nothing",
    isolated=True,
    full_python=True,
    network_off=True,
    memory_limit=True,
    process_limit=True,
    per_call_uid=True,
    seccomp=True,
    disk_limit=True,
    sessions=True,
    network_allow_list=True,
)
SCHEMA: Schema = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
    },
}


@dataclass
class FakeSession(Session):
    """A session in memory: its files are kept, its programs and commands are answered by `answer`.

    contents: the files by path. ran: programs and commands so far; words of a command are joined by spaces.
    """

    answer: Answer = ""
    contents: dict[str, bytes] = field(default_factory=dict)
    ran: list[str] = field(default_factory=list)
    network: tuple[str, ...] = ()

    async def run(self, code: str, *, stdin: str = "", limits: Limits = NO_LIMITS_GIVEN) -> RunResult:
        self.ran.append(code)
        return _answered(self.answer, code, stdin)

    async def exec(
        self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", limits: Limits = NO_LIMITS_GIVEN
    ) -> RunResult:
        return await self.run(command if isinstance(command, str) else " ".join(command), stdin=stdin)

    async def read(self, path: str, *, max_bytes: int = 16 << 20) -> bytes:
        data = self.contents.get(_inside(path))
        if data is None:
            raise FileRefused(f"there is no file {path!r}")
        if len(data) > max_bytes:
            raise FileRefused(f"{path!r} has {len(data)} bytes; at most {max_bytes} are read")
        return data

    async def write(self, path: str, data: bytes) -> None:
        name = _inside(path)
        if any(one.startswith(f"{name}/") or name.startswith(f"{one}/") for one in self.contents):
            raise FileRefused(f"{path!r} is a folder, or below a file")
        self.contents[name] = data

    async def files(self, path: str = ".") -> tuple[FileInfo, ...]:
        found = {name: FileInfo(path=name, size=len(data)) for name, data in self.contents.items()}
        for name in list(found):
            while name := posixpath.dirname(name):
                found[name] = FileInfo(path=name, size=0, is_folder=True)
        folder = _inside(path)
        if folder != "." and not (folder in found and found[folder].is_folder):
            raise FileRefused(f"there is no folder {path!r}")
        below = "" if folder == "." else f"{folder}/"
        return tuple(found[name] for name in sorted(found) if name.startswith(below))

    async def reset(self) -> None:
        self.contents.clear()

    async def snapshot(self) -> bytes:
        stream = io.BytesIO()
        with tarfile.open(fileobj=stream, mode="w") as archive:
            for name, data in self.contents.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return stream.getvalue()

    async def restore(self, snapshot: bytes) -> None:
        try:
            with tarfile.open(fileobj=io.BytesIO(snapshot)) as archive:
                read = {one.name: archive.extractfile(one) for one in archive if one.isfile()}
                self.contents = {_inside(name): file.read() for name, file in read.items() if file is not None}
        except tarfile.TarError as error:
            raise FileRefused(f"the snapshot is not a tar archive: {error}") from error


@dataclass
class FakeSandbox(SandboxBackend):
    """A sandbox in memory, which runs nothing.

    answer: to programs; a text is what they print. judge: whether solutions pass, or their verdict. able: what it
    reports; its `name` replaces that of the capabilities. unavailable: why it is not there; probe and start raise it.
    """

    answer: Answer = ""
    judge: Judge = True
    name: str = "fake"
    able: Capabilities = ABLE
    unavailable: str = ""
    is_open: bool = False
    ran: list[str] = field(default_factory=list)
    graded: list[GradeRequest] = field(default_factory=list)
    sessions: list[FakeSession] = field(default_factory=list)
    num_sessions_open: int = 0

    def supports(self, spec: SandboxSpec) -> bool:
        return self.able.sessions or not spec.session

    async def probe(self) -> Capabilities:
        if self.unavailable:
            raise SandboxUnavailable(self.unavailable)
        return replace(self.able, backend=self.name)

    async def start(self) -> Self:
        await self.probe()
        self.is_open = True
        return self

    async def close(self) -> None:
        self.is_open = False

    async def run(self, code: str, *, stdin: str = "", limits: Limits = NO_LIMITS_GIVEN) -> RunResult:
        self.ran.append(code)
        return _answered(self.answer, code, stdin)

    async def grade(self, request: GradeRequest) -> Verdict:
        self.graded.append(request)
        found = self.judge(request) if callable(self.judge) else self.judge
        if isinstance(found, Exception):
            raise found
        if isinstance(found, Verdict):
            return found
        result = CaseResult(passed=found, error="" if found else "it is wrong")
        return Verdict(status=RunStatus.OK, results=(result,) * len(request.cases))

    @asynccontextmanager
    async def session(self, *, network: tuple[str, ...] = ()) -> AsyncIterator[FakeSession]:
        if not self.able.sessions:
            raise UserError(f"sandbox {self.name!r} has no sessions")
        self.sessions.append(FakeSession(self.answer, network=network))
        self.num_sessions_open += 1
        try:
            yield self.sessions[-1]
        finally:
            self.num_sessions_open -= 1

    def metrics(self) -> dict[str, float]:
        return {"sandbox/calls_total": float(len(self.ran) + len(self.graded))}


@dataclass
class FakeAgentContext(AgentContext):
    """What an agent gets to play an episode, without an episode: it records what the agent did.

    replies: of the environment to each answer; the answer after the last one ends the episode. call_result: of each
    call of a tool; None returns its name and arguments. answers, calls, notes: what the agent did.
    """

    replies: Sequence[str] = ()
    url: str = "http://127.0.0.1:9"  # nothing listens there
    key: str = "the-key"
    model: str = "policy"
    seed: int = 5
    time_s: float = 60.0
    session: Session | None = None
    tools: Sequence[Schema] = (SCHEMA,)
    messages: tuple[Message, ...] = ({"role": "user", "content": "Say yes."},)
    call_result: str | None = None
    answers: list[str] = field(default_factory=list)
    calls: list[tuple[str, Mapping[str, Json]]] = field(default_factory=list)
    notes: dict[str, Json] = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> str:
        self.calls.append((name, arguments))
        return f"{name} {arguments}" if self.call_result is None else self.call_result

    async def answer(self, text: str) -> Reply:
        number = len(self.answers)
        self.answers.append(text)
        self.answered.set()
        said: tuple[Message, ...] = tuple({"role": "user", "content": one} for one in self.replies[number : number + 1])
        self.messages += ({"role": "assistant", "content": text}, *said)
        return Reply(messages=said, done=not said)

    def note(self, key: str, value: Json) -> None:
        """Raises TypeError or ValueError for what is not JSON."""
        json.dumps(value, allow_nan=False)
        self.notes[key] = value


def _answered(answer: Answer, code: str, stdin: str) -> RunResult:
    found = answer(code, stdin) if callable(answer) else answer
    if isinstance(found, Exception):
        raise found
    if isinstance(found, RunResult):
        return found
    return RunResult(status=RunStatus.OK, exit_code=0, stdout=found, stderr="", stdout_bytes=found.encode())


def _inside(path: str) -> str:
    """The path without `.` and `..`. Raises FileRefused where it leaves the work folder."""
    clean = posixpath.normpath(path)
    if clean.startswith(("/", "../")) or clean == "..":
        raise FileRefused(f"{path!r} leaves the work folder")
    return clean
