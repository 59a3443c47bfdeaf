"""Kept processes in which a Python function plays episodes, one at a time each: what it imports is imported once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
from collections.abc import Awaitable, Mapping
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import agentgym
import agentgym_plugins
from agentgym.agents import AgentContext, AgentFailed
from agentgym.errors import UserError
from agentgym.killable.pool import Pool
from agentgym.killable.process import Child
from agentgym.programs import Tail, has_children, kill_all, tagged
from agentgym.sandbox import FileRefused, Limits, RunResult
from agentgym.types import Json

KEPT_BYTES: Final = 8000  # of what an episode's agent wrote
CHUNK: Final = 1 << 16
HANDLER: Final = "agentgym_plugins.agents.child:plays"


class Workers:
    """Starts processes when they are needed; one whose agent hangs or dies is killed and replaced.

    function: import path of what is called with a context and `settings` as keyword arguments. python: the interpreter;
    empty is this one.
    """

    def __init__(
        self,
        function: str,
        settings: Mapping[str, Json],
        *,
        environ: Mapping[str, str],
        python: str,
        processes: int,
        memory_mib: int,
        output_mib: int,
        start_s: float,
    ) -> None:
        given: dict[str, Json] = {"function": function, "settings": dict(settings)}
        self._output_mib = output_mib
        self._pool = Pool(
            lambda: _Worker(given, environ, python=python, memory_mib=memory_mib),
            function,
            size=processes,
            start_s=start_s,
        )

    async def play(self, context: AgentContext) -> None:
        """Raises AgentFailed for what the function did wrong, InfraError when no process could be started."""
        async with self._pool.child() as worker:
            failed = await worker.play(context, self._output_mib << 20)
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """End every process; safe to call twice."""
        await self._pool.close()

    async def first(self) -> None:
        """Have one process ready. Raises UserError where the function cannot be imported."""
        try:
            async with self._pool.child():
                pass
        except UserError as error:
            raise UserError(f"agent: {error}") from None


class _Worker(Child):
    """A child that plays episodes, and what it writes."""

    def __init__(self, given: Mapping[str, Json], environ: Mapping[str, str], *, python: str, memory_mib: int) -> None:
        paths = _own_folders() if python else [path for path in sys.path if path]
        needed = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **environ}
        self._tag, variables = tagged({"HOME": os.environ.get("HOME", "/"), **needed})
        super().__init__(HANDLER, given, variables, memory_mib=memory_mib, python=python)
        self._written = -1  # the end of its outputs' pipe
        self._tail = Tail(KEPT_BYTES)

    @property
    def output(self) -> str:  # type: ignore[override]
        return self._tail.text()

    @property
    def alive(self) -> bool:
        """Whether it can be used again: not if an agent left processes behind."""
        return super().alive and self.process is not None and not has_children(self.process.pid)

    async def start(self, output: int | None = None) -> None:
        self._written, end = os.pipe()
        os.set_blocking(self._written, False)
        asyncio.get_running_loop().add_reader(self._written, self._collect)
        try:
            await super().start(end)
        finally:
            os.close(end)

    async def play(self, context: AgentContext, max_bytes: int) -> AgentFailed | None:
        """One episode; returns what the function did wrong."""
        self._collect()
        self._tail = Tail(KEPT_BYTES)
        given = {
            "url": context.url,
            "key": context.key,
            "model": context.model,
            "seed": context.seed,
            "session": context.session is not None,
            "time_s": context.time_s,
            "messages": context.messages,
            "tools": [*context.tools],
        }
        try:
            await self.send(json.dumps({"play": given}).encode())
            while "end" not in (frame := json.loads(await self.receive())):
                await self.send(await _done(context, frame["do"], frame["given"]))
                if self._tail.num_bytes > max_bytes:
                    raise AgentFailed("output_limit", f"it wrote more than agent.output_mib = {max_bytes >> 20}")
            end = frame["end"]
            return AgentFailed(end["kind"], end["message"]) if end else None
        except (EOFError, OSError, json.JSONDecodeError):
            await self.end()
            context.note("exit", self.process.returncode if self.process else None)
            return AgentFailed("exit", f"its process {self.exit_reason}")
        finally:
            self._collect()
            if self._tail.num_bytes:
                context.note("output", self.output)

    async def end(self) -> None:
        """The child and all that it started, out of its group too; safe to call twice."""
        self.close_channel()
        if (process := self.process) is not None and process.returncode is None:
            leader = process.pid if process.poll() is None else None
            await asyncio.to_thread(kill_all, leader, self._tag)
            await asyncio.to_thread(process.wait)
        if self._written >= 0:
            self._collect()
            self._end_collecting()

    def _collect(self) -> None:
        """Read what it wrote so far; called by the loop too."""
        while self._written >= 0:
            try:
                piece = os.read(self._written, CHUNK)
            except BlockingIOError:
                return
            if not piece:
                self._end_collecting()
                return
            self._tail.add(piece)

    def _end_collecting(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop is running any more
            asyncio.get_running_loop().remove_reader(self._written)
        os.close(self._written)
        self._written = -1


async def _done(context: AgentContext, what: str, given: list[Any]) -> bytes:
    """What the child asks for, as a frame. The agent's own mistakes are told to it, all else is raised here."""
    try:
        value = await _asked(context, what, given)
    except (FileRefused, AgentFailed, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        return json.dumps({"error": type(error).__name__, "text": str(error)}).encode()
    return json.dumps({"value": value}).encode()


async def _asked(context: AgentContext, what: str, given: list[Any]) -> object:
    session = context.session
    if what in ("answer", "call_tool", "note") and not isinstance(given[0], str):
        raise TypeError(f"{what}: its first argument is a text, not {type(given[0]).__name__}")
    if what == "call_tool":
        return await context.call_tool(*given)
    if what == "answer":
        reply = await context.answer(*given)
        return {"messages": [*reply.messages], "done": reply.done, "invalid": reply.invalid}
    if what == "note":
        context.note(*given)
        return None
    if what == "messages":
        return [*context.messages]
    if what == "tools":
        return [*context.tools]
    if session is None:
        raise AgentFailed("protocol", f"{what}: the episode has no session")
    if what == "exec":
        command, stdin, folder, wall_s = given
        return await _result(session.exec(command, stdin=stdin, folder=folder, limits=_limits(wall_s)))
    if what == "run":
        code, stdin, wall_s = given
        return await _result(session.run(code, stdin=stdin, limits=_limits(wall_s)))
    if what == "read":
        return (await session.read(*given)).decode("utf-8", "replace")
    if what == "write":
        path, text = given
        await session.write(path, text.encode("utf-8", "replace"))
        return None
    raise AgentFailed("protocol", f"a context has no {what!r}")


def _limits(wall_s: float) -> Limits:
    return Limits(wall_s=wall_s) if wall_s else Limits()


async def _result(running: Awaitable[RunResult]) -> Json:
    ran = await running
    return {
        "status": ran.status.value,
        "exit_code": ran.exit_code,
        "stdout": ran.stdout,
        "stderr": ran.stderr,
        "truncated": ran.truncated,
        "wall_s": ran.wall_s,
        "cpu_s": ran.cpu_s,
        "memory_mib": ran.memory_mib,
        "limit": None if ran.limit is None else asdict(ran.limit),
        "state_lost": ran.state_lost,
    }


@lru_cache(maxsize=1)
def _own_folders() -> list[str]:
    """Where another interpreter finds this package, if it is not installed among its own."""
    folders = [str(Path(module.__path__[0]).parent) for module in (agentgym, agentgym_plugins)]
    return [folder for folder in folders if Path(folder).name not in ("site-packages", "dist-packages")]


def check_python(python: str) -> None:
    """Raises UserError for an interpreter that is not there."""
    if python and shutil.which(python) is None:
        raise UserError(f"agent.python: there is no interpreter {python!r}; give a path, as .venv-agents/bin/python")
