"""The child of `agentgym_plugins.agents.workers`: imports a function once, and plays one episode after another with it.

Frames of JSON, see `agentgym.killable.child`. From the parent: `play` with the context, then a `value` for each
`do` of the child, or an `error`. From the child: `do`, and `end` of the episode.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentgym.agents import AgentFailed
from agentgym.env import Reply
from agentgym.import_path import import_object
from agentgym.killable.child import Handler, receive_frame, send_frame
from agentgym.sandbox import FileRefused, LimitHit, RunResult, RunStatus
from agentgym.tools import Schema
from agentgym.types import Json, Message

MAX_FAULT_CHARS: Final = 4000


class Line:
    """The channel to the parent: one question at a time, from any thread."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._one_at_a_time = threading.Lock()

    def ask(self, what: str, *given: Json) -> Any:
        with self._one_at_a_time:
            send_frame(self._channel, json.dumps({"do": what, "given": given}).encode())
            answer = json.loads(receive_frame(self._channel))
        if "error" in answer:
            kinds = {"FileRefused": FileRefused, "AgentFailed": RuntimeError}
            raise kinds.get(answer["error"], RuntimeError)(answer["text"])
        return answer["value"]


class WorkerContext:
    """The `agentgym.AgentContext` of a plain function: `call_tool`, `answer` and the session's methods block."""

    def __init__(self, line: Line, given: Mapping[str, Any]) -> None:
        self._line = line
        self.url: str = given["url"]
        self.key: str = given["key"]
        self.model: str = given["model"]
        self.seed: int = given["seed"]
        self.session = WorkerSession(line) if given["session"] else None
        self._until: float = time.monotonic() + given["time_s"]
        self._messages: tuple[Message, ...] | None = tuple(given["messages"])
        self._tools: Sequence[Schema] | None = given["tools"]

    @property
    def messages(self) -> tuple[Message, ...]:
        if self._messages is None:
            self._messages = tuple(self._line.ask("messages"))
        return self._messages

    @property
    def tools(self) -> Sequence[Schema]:
        if self._tools is None:
            self._tools = self._line.ask("tools")
        return self._tools

    @property
    def time_s(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def call_tool(self, name: str, arguments: Mapping[str, Json]) -> str:
        text: str = self._line.ask("call_tool", name, dict(arguments))
        self._messages = self._tools = None
        return text

    def answer(self, text: str) -> Reply:
        reply = self._line.ask("answer", text)
        self._messages = self._tools = None
        return Reply(messages=tuple(reply["messages"]), done=reply["done"], invalid=reply["invalid"])

    def note(self, key: str, value: Json) -> None:
        self._line.ask("note", key, value)


class WorkerSession:
    """The episode's sandbox session: as `agentgym.Session`, but it blocks; limits are left as they are by default."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def exec(self, command: str | Sequence[str], *, stdin: str = "", folder: str = ".", wall_s: float = 0) -> RunResult:
        """wall_s: 0 is the session's own limit."""
        given = command if isinstance(command, str) else list(command)
        return _result(self._line.ask("exec", given, stdin, folder, wall_s))

    def run(self, code: str, *, stdin: str = "", wall_s: float = 0) -> RunResult:
        return _result(self._line.ask("run", code, stdin, wall_s))

    def read(self, path: str) -> str:
        """A text file in UTF-8. Raises FileRefused."""
        text: str = self._line.ask("read", path)
        return text

    def write(self, path: str, text: str) -> None:
        """Raises FileRefused."""
        self._line.ask("write", path, text)


class AsyncContext(WorkerContext):
    """A context for an `async def`, as `agentgym.AgentContext` is; its session blocks."""

    async def call_tool(self, name: str, arguments: Mapping[str, Json]) -> str:  # type: ignore[override]
        return await asyncio.to_thread(super().call_tool, name, arguments)

    async def answer(self, text: str) -> Reply:  # type: ignore[override]
        return await asyncio.to_thread(super().answer, text)


def _result(given: Mapping[str, Any]) -> RunResult:
    limit = given["limit"] and LimitHit(**given["limit"])
    return RunResult(**{**given, "status": RunStatus(given["status"]), "limit": limit})


def plays(given: Mapping[str, Any]) -> Handler:
    """The handler of a child. given: the import path of a `function`, and its `settings`."""
    function: Any = import_object(given["function"], "a function", callable, local=True)

    def handle(channel: socket.socket, body: bytes) -> None:
        end = _play(function, Line(channel), json.loads(body)["play"], given["settings"])
        sys.stdout.flush()
        sys.stderr.flush()
        send_frame(channel, json.dumps({"end": end}).encode())

    return handle


def _play(function: Any, line: Line, given: Mapping[str, Any], settings: Mapping[str, Any]) -> Json:
    random.seed(given["seed"])
    try:
        if inspect.iscoroutinefunction(function):
            asyncio.run(function(AsyncContext(line, given), **settings))
        else:
            function(WorkerContext(line, given), **settings)
        return {}
    except AgentFailed as failed:
        return {"kind": failed.kind, "message": failed.message[-MAX_FAULT_CHARS:]}
    except (EOFError, ConnectionError):  # of the line, if the parent is gone; else the agent's own
        return {"kind": "connection", "message": traceback.format_exc()[-MAX_FAULT_CHARS:]}
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # the agent's code: anything may come
        return {"kind": type(error).__name__, "message": traceback.format_exc()[-MAX_FAULT_CHARS:]}
