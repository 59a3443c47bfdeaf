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
from agentgym.agents import AgentFailed, Desk
from agentgym.errors import InfraError, UserError
from agentgym.killable_process import AsyncChild
from agentgym.sandbox import FileRefused, Limits, RunResult
from agentgym.types import Json
from agentgym_plugins.agents.processes import Tail, has_children, kill_all, tagged

KEPT_BYTES: Final = 8000  # of what an episode's agent wrote
CHUNK: Final = 1 << 16


class Workers:
    """Starts processes when they are needed; one whose agent hangs or dies is killed and replaced.

    function: import path of what is called with a desk and `settings` as keyword arguments. python: the interpreter;
    empty is this one.
    """

    def __init__(
        self,
        function: str,
        settings: Mapping[str, Json],
        *,
        environ: Mapping[str, str],
        python: str,
        memory_mib: int,
        output_mib: int,
        start_s: float,
    ) -> None:
        self._setup = json.dumps({"function": function, "settings": settings, "memory_mib": memory_mib}).encode()
        self._function, self._environ, self._python = function, environ, python
        self._output_mib, self._start_s = output_mib, start_s
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def play(self, desk: Desk) -> None:
        """Raises AgentFailed for what the function did wrong, InfraError when no process could be started."""
        worker = await self._take()
        try:
            failed = await worker.play(desk, self._output_mib << 20)
        except BaseException:
            await asyncio.shield(self._drop(worker))
            raise
        if worker.alive and not worker.has_children:
            self._idle.append(worker)
        else:
            await self._drop(worker)
        if failed is not None:
            raise failed

    async def close(self) -> None:
        """End every process; safe to call twice."""
        self._idle.clear()
        await asyncio.gather(*(self._drop(worker) for worker in list(self._all)))

    async def first(self) -> None:
        """Have one process ready. Raises UserError where the function cannot be imported."""
        self._idle.append(await self._take())

    async def _take(self) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            if worker.alive:
                return worker
            await self._drop(worker)
        worker = _Worker(self._python, self._environ)
        self._all.add(worker)
        try:
            async with asyncio.timeout(self._start_s):
                answer = await worker.start(self._setup)
        except (OSError, EOFError, TimeoutError) as error:
            output = worker.output.text()
            await self._drop(worker)
            raise InfraError(f"a process for {self._function} did not start: {error!r}. {output}") from error
        except BaseException:
            await asyncio.shield(self._drop(worker))
            raise
        if "error" in answer:
            await self._drop(worker)
            raise UserError(f"agent: {answer['error']}")
        return worker

    async def _drop(self, worker: _Worker) -> None:
        self._all.discard(worker)
        await worker.end()


class _Worker(AsyncChild):
    """A child that plays episodes, and what it writes."""

    def __init__(self, python: str, environ: Mapping[str, str]) -> None:
        super().__init__()
        self._python = python
        paths = _own_folders() if python else [path for path in sys.path if path]
        given = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", **environ}
        self._tag, self._environ = tagged({"HOME": os.environ.get("HOME", "/"), **given})
        self._written = -1  # the end of its outputs' pipe
        self.output = Tail(KEPT_BYTES)

    @property
    def has_children(self) -> bool:
        """Whether an agent left processes behind."""
        return self.process is not None and has_children(self.process.pid)

    async def start(self, setup: bytes) -> Any:
        self._written, end = os.pipe()
        try:
            await self.open("agentgym_plugins.agents.child", self._environ, python=self._python, output=end)
        finally:
            os.close(end)
        os.set_blocking(self._written, False)
        asyncio.get_running_loop().add_reader(self._written, self._collect)
        await self.send(setup)
        return json.loads(await self.receive())

    async def play(self, desk: Desk, max_bytes: int) -> AgentFailed | None:
        """One episode; returns what the function did wrong."""
        self._collect()
        self.output = Tail(KEPT_BYTES)
        given = {
            "url": desk.url,
            "key": desk.key,
            "model": desk.model,
            "seed": desk.seed,
            "session": desk.session is not None,
            "time_s": desk.time_s,
            "messages": desk.messages,
            "tools": [*desk.tools],
        }
        try:
            await self.send(json.dumps({"play": given}).encode())
            while "end" not in (frame := json.loads(await self.receive())):
                await self.send(await _done(desk, frame["do"], frame["given"]))
                if self.output.num_bytes > max_bytes:
                    raise AgentFailed("output_limit", f"it wrote more than agent.output_mib = {max_bytes >> 20}")
            end = frame["end"]
            return AgentFailed(end["kind"], end["message"]) if end else None
        except (EOFError, OSError, json.JSONDecodeError):
            await self.end()
            desk.note("exit", self.process.returncode if self.process else None)
            return AgentFailed("exit", f"its process {self.exit_reason}")
        finally:
            self._collect()
            if self.output.num_bytes:
                desk.note("output", self.output.text())

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
            self.output.add(piece)

    def _end_collecting(self) -> None:
        with contextlib.suppress(RuntimeError):  # no loop is running any more
            asyncio.get_running_loop().remove_reader(self._written)
        os.close(self._written)
        self._written = -1


async def _done(desk: Desk, what: str, given: list[Any]) -> bytes:
    """What the child asks for, as a frame. The agent's own mistakes are told to it, all else is raised here."""
    try:
        value = await _asked(desk, what, given)
    except (FileRefused, AgentFailed, TypeError, ValueError) as error:
        if isinstance(error, UserError):
            raise
        return json.dumps({"error": type(error).__name__, "text": str(error)}).encode()
    return json.dumps({"value": value}).encode()


async def _asked(desk: Desk, what: str, given: list[Any]) -> object:
    session = desk.session
    if what == "call_tool":
        return await desk.call_tool(*given)
    if what == "answer":
        reply = await desk.answer(*given)
        return {"messages": [*reply.messages], "done": reply.done, "invalid": reply.invalid}
    if what == "note":
        desk.note(*given)
        return None
    if what == "messages":
        return [*desk.messages]
    if what == "tools":
        return [*desk.tools]
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
    raise AgentFailed("protocol", f"a desk has no {what!r}")


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
