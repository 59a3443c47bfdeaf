"""Servers of chat completions for tests: one in this process, and one that fails over a real connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Said = Mapping[str, Any] | Exception | Callable[[Mapping[str, Any]], Mapping[str, Any]]


def completion(
    content: str | None = "", *calls: tuple[str, object], finish: str = "stop", usage: object = (10, 5), **more: Any
) -> dict[str, Any]:
    """The body of an answer. calls: names and arguments. usage: tokens of prompt and completion; None leaves it out.
    more: fields of the message."""
    message: dict[str, Any] = {"role": "assistant", "content": content, **more}
    if calls:
        message["tool_calls"] = [
            {"id": "x", "type": "function", "function": {"name": name, "arguments": given}} for name, given in calls
        ]
    body: dict[str, Any] = {"model": "tester-1", "choices": [{"message": message, "finish_reason": finish}]}
    if usage is not None:
        prompt, sampled = usage if isinstance(usage, tuple) else (10, 5)
        body["usage"] = {"prompt_tokens": prompt, "completion_tokens": sampled}
    return body


@dataclass
class ScriptedServer:
    """Answers in turn; the last answer is said again and again. An exception is raised."""

    says: list[Said]
    lists: list[str] | None = field(default_factory=lambda: ["tester"])
    takes_s: float = 0.0
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    most_at_once: int = 0
    closed: bool = False
    _now: int = 0

    async def models(self) -> list[str] | None:
        return self.lists

    async def complete(self, body: Mapping[str, Any]) -> Any:
        said = self.says[min(len(self.asked), len(self.says) - 1)]
        self.asked.append(json.loads(json.dumps(body)))
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            await asyncio.sleep(self.takes_s)
        finally:
            self._now -= 1
        if isinstance(said, Exception):
            raise said
        return said(body) if callable(said) else said

    async def close(self) -> None:
        self.closed = True


@dataclass
class FaultyServer:
    """Speaks HTTP over a socket. faults: of the next requests, each one of `answer`'s kinds; then all is well."""

    faults: list[str] = field(default_factory=list)
    lists: str = '{"object": "list", "data": [{"id": "tester"}]}'
    says: Callable[[Mapping[str, Any]], Mapping[str, Any]] = lambda body: completion("yes")
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    url: str = ""

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[FaultyServer]:
        handlers: set[asyncio.Task[None]] = set()

        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            handlers.add(task)
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._one(reader, writer):
                    pass
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        try:
            yield self
        finally:
            server.close()
            for handler in handlers:
                handler.cancel()
            await asyncio.gather(*handlers, return_exceptions=True)

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines if line)}
        sent = await reader.readexactly(int(headers.get("content-length", 0)))
        body = json.loads(sent) if sent else None
        self.seen.append((first, headers, body))
        if "/models" in first:
            return await self._answer(writer, 200, self.lists)
        fault = self.faults.pop(0) if self.faults else ""
        match fault:
            case "":
                return await self._answer(writer, 200, json.dumps(self.says(body)))
            case "cut":
                writer.write(b'HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{"choices": [')
                await writer.drain()
                return False
            case "hang":
                await asyncio.Event().wait()
            case "page":
                return await self._answer(writer, 200, "<html>welcome</html>")
            case "garbage":
                return await self._answer(writer, 200, '{"choices": [{"mess')
            case "odd":
                return await self._answer(writer, 200, '{"choices": []}')
        status, _, rest = fault.partition(" ")
        return await self._answer(writer, int(status), rest or '{"error": {"message": "no"}}')

    async def _answer(self, writer: asyncio.StreamWriter, status: int, text: str) -> bool:
        extra = ""
        if text.startswith("after="):
            after, _, text = text.partition(";")
            extra = f"retry-after: {after.removeprefix('after=')}\r\n"
        text = text or '{"error": {"message": "slow down", "code": "busy"}}'
        head = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\n{extra}content-length: {len(text)}\r\n\r\n"
        writer.write(head.encode() + text.encode())
        await writer.drain()
        return True
