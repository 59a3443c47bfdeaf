"""Any program as an agent: it is started in a folder of its own, and what it writes is the answer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from agentgym.agents import Agent, AgentContext, AgentFailed
from agentgym.errors import UserError
from agentgym.programs import Program
from agentgym.sandbox import Limits, Session
from agentgym.types import Json
from agentgym_plugins.agents.in_session import KEPT_BYTES, LONGEST_S, TASK, run_inside, url_inside, write_task

PLACEHOLDERS: Final = ("url", "openai_url", "key", "model", "task", "folder", "seed", "prompt", "instructions")
MAX_FILES: Final = 100
MAX_FILE_CHARS: Final = 4000
MAX_ANSWER_BYTES: Final = 1 << 20
MOST_MIB: Final = 1 << 20  # as good as no limit: the session has its own
MAX_PROCESSES: Final = 96  # and threads


@dataclass(frozen=True, kw_only=True)
class StartedProgram(Agent):
    """A program that is started in a folder of its own, once for each answer; what it writes is the answer.

    It has OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY and AGENTGYM_TASK, the path of a JSON
    file with `messages` and `tools`. Of our own variables it has PATH and the like.
    """

    where: Literal["process", "session"] = "process"
    """In a process of ours, or inside the episode's sandbox session, with its files and without any network: there the
    endpoint is on the session's loopback interface, {folder} is the workdir in which it starts, and the program comes
    along where it is a command-line agent, else the image must have it."""
    answer_file: str = ""
    """The file of its work folder that holds the answer; empty takes what it writes to standard output."""
    environ: dict[str, str] = field(default_factory=dict)
    """Environment variables that it gets besides."""
    drops: tuple[str, ...] = ()
    """Fields of its requests that cannot be honoured and are dropped, as output_config.format, instead of refused."""
    time_s: float = 0.0
    """Seconds of one start; 0 leaves it the episode's time."""
    memory_mib: int = 2048
    """Memory of each of its processes, in MiB; 0 is no limit."""
    output_mib: int = 16
    """MiB that both of its outputs together may have."""
    at_once: int = 16
    """Programs that run at the same time; the others wait."""

    def __post_init__(self) -> None:
        if self.time_s < 0 or self.memory_mib < 0 or self.output_mib < 1 or self.at_once < 1:
            raise ValueError(
                f"time_s {self.time_s:g} and memory_mib {self.memory_mib} must be at least 0, output_mib "
                f"{self.output_mib} and at_once {self.at_once} at least 1"
            )

    @abstractmethod
    def words(self, *, again: bool) -> Sequence[str]:
        """The program and its arguments, with placeholders. again: the environment has answered its last answer."""

    def stdin(self, context: AgentContext, *, again: bool) -> str:
        """What it reads from standard input."""
        return ""

    def variables(self, context: AgentContext, home: Path) -> Mapping[str, str]:
        """Its own environment variables. home: its HOME, in which its settings can be written."""
        return {}

    def said(self, output: str) -> str:
        """Its answer, of what it wrote to standard output. Raises AgentFailed where that says that it failed."""
        return output.strip()

    @cached_property
    def _slots(self) -> asyncio.Semaphore:
        return asyncio.Semaphore(self.at_once)

    def slot(self) -> AbstractAsyncContextManager[None]:
        return self._slots

    async def close(self) -> None:
        vars(self).pop("_slots", None)  # another run has another event loop

    @property
    def wants_session(self) -> bool:
        return self.where == "session"

    async def play(self, context: AgentContext) -> None:
        if self.where == "session":
            await self._play_inside(context)
            return
        folder = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="agentgym-agent-"))
        try:
            again = False
            while not (await context.answer(await self._run(context, folder, again=again))).done:
                again = True
        finally:
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    @abstractmethod
    def words_inside(self, *, again: bool) -> Sequence[str]:
        """As `words`, of a program in a session."""

    @abstractmethod
    async def prepare_inside(self, context: AgentContext, session: Session, url: str) -> Mapping[str, str]:
        """Write what the program needs in a session before it starts; returns its environment variables."""

    async def _play_inside(self, context: AgentContext) -> None:
        session, url = await url_inside(context)
        wall_s = self.time_s or LONGEST_S
        limits = Limits(
            wall_s=wall_s,
            cpu_s=math.ceil(wall_s),
            memory_mib=self.memory_mib or MOST_MIB,
            reserves=self.memory_mib == 0,
            file_mib=self.output_mib,
            processes=MAX_PROCESSES,
            output_bytes=max(1 << 16, (self.output_mib << 20) // 128),  # it is ended at 128 times what is kept
        )
        again = False
        while True:
            environ = await self.prepare_inside(context, session, url)
            text = await run_inside(
                context,
                session,
                arguments_of(self.words_inside(again=again), context, url, TASK, "."),
                {**environ, **self.environ},
                stdin=self.stdin(context, again=again),
                answer_file=self.answer_file,
                limits=limits,
            )
            if (await context.answer(text if self.answer_file else self.said(text))).done:
                return
            again = True

    async def _run(self, context: AgentContext, folder: Path, *, again: bool) -> str:
        """Start it once, and wait for its end; returns its answer."""
        work, home, task, stdin = (folder / name for name in ("work", "home", "task.json", "stdin.txt"))
        work.mkdir(exist_ok=True)
        home.mkdir(exist_ok=True)
        given = {"messages": context.messages, "tools": [*context.tools], "model": context.model}
        task.write_text(json.dumps(given), encoding="utf-8")
        variables = await asyncio.to_thread(self.variables, context, home)
        shared = environ_of(context, context.url, str(task))
        stdin.write_text(self.stdin(context, again=again), encoding="utf-8", errors="replace")
        program = Program(
            arguments_of(self.words(again=again), context, context.url, str(task), str(work)),
            folder=work,
            environ={"HOME": str(home), **shared, **variables, **self.environ},
            stdin=stdin,
            memory_mib=self.memory_mib,
            output_mib=self.output_mib,
        )
        try:
            output = await program.run(self.time_s)
        finally:
            context.note("output", program.output[-KEPT_BYTES:])
            context.note("errors", program.errors)
            context.note("exit", program.exit_code)
            context.note("files", await asyncio.to_thread(_files, work))
        if self.answer_file:
            return await asyncio.to_thread(_read, work, self.answer_file)
        return self.said(output)


@dataclass(frozen=True, kw_only=True)
class Command(StartedProgram):
    """Any program, started in a folder of its own; what it writes is the answer.

    Its home is a folder of the episode's. An environment that answers back has it started again, with the
    conversation so far in AGENTGYM_TASK.
    """

    argv: tuple[str, ...]
    """The program and its arguments; {url}, {openai_url}, {key}, {model}, {task}, {folder}, {seed}, {prompt} (the
    last message) and {instructions} (all of them) are replaced."""

    def __post_init__(self) -> None:
        if not self.argv:
            raise ValueError("argv is empty; give the program and its arguments, as [python, my_agent.py]")
        super().__post_init__()

    async def check(self) -> None:
        program = self.argv[0]
        if self.where == "session":
            return  # what the image has, only a session knows
        if "{" not in program and shutil.which(program, path=self.environ.get("PATH")) is None:
            raise UserError(
                f"agent.argv: there is no program {program!r}; give its path, or install it where PATH "
                f"({os.environ.get('PATH', '')}) finds it"
            )

    def words(self, *, again: bool) -> Sequence[str]:
        return whole_path(self.argv[0]), *self.argv[1:]

    def words_inside(self, *, again: bool) -> Sequence[str]:
        return self.argv

    async def prepare_inside(self, context: AgentContext, session: Session, url: str) -> Mapping[str, str]:
        await write_task(context, session)
        return environ_of(context, url, TASK)


def environ_of(context: AgentContext, url: str, task: str) -> dict[str, str]:
    """What the vendors' clients read by themselves, and where the task is."""
    return {
        "OPENAI_BASE_URL": f"{url}/v1",
        "OPENAI_API_KEY": context.key,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": context.key,
        "AGENTGYM_TASK": task,
        "AGENTGYM_MODEL": context.model,
    }


def arguments_of(words: Sequence[str], context: AgentContext, url: str, task: str, work: str) -> list[str]:
    """The words with their placeholders replaced."""
    users = [message["content"] for message in context.messages if message["role"] == "user"]
    values: Mapping[str, str] = {
        "url": url,
        "openai_url": f"{url}/v1",
        "key": context.key,
        "model": context.model,
        "task": task,
        "folder": work,
        "seed": str(context.seed),
        "prompt": users[-1] if users else "",
        "instructions": "\n\n".join(message["content"] for message in context.messages),
    }
    return [_filled(word, values) for word in words]


def whole_path(program: str) -> str:
    """A relative path made absolute, since the program is started in another folder; names on PATH stay."""
    return str(Path.cwd() / program) if os.sep in program and "{" not in program else program


def _filled(word: str, values: Mapping[str, str]) -> str:
    """Each placeholder replaced once, so that braces in a prompt stay as they are."""
    parts = word.split("{")
    for n, part in enumerate(parts[1:], start=1):
        name, closed, rest = part.partition("}")
        parts[n] = values[name] + rest if closed and name in values else "{" + part
    return "".join(parts)


def _files(folder: Path) -> dict[str, Json]:
    """What it left, by path: short texts whole, of all else the size in bytes."""
    found: dict[str, Json] = {}
    for path in sorted(folder.rglob("*"))[:MAX_FILES]:
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink():
                found[str(path.relative_to(folder))] = _short_text(path)
    return found


def _short_text(path: Path) -> str | int:
    size = path.stat().st_size
    if size > MAX_FILE_CHARS:
        return size
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return size


def _read(work: Path, name: str) -> str:
    path = work / name
    if not path.is_file() or not path.resolve().is_relative_to(work.resolve()):
        raise AgentFailed("no_answer", f"it ended without writing agent.answer_file = {name!r} in its folder")
    with path.open("rb") as file:
        return file.read(MAX_ANSWER_BYTES).decode("utf-8", "replace").strip()
