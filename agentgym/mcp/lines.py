"""MCP over a stream of bytes, one message a line, as servers speak on their standard input and output."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from agentgym.sandbox import Stream

MAX_LINE_BYTES = 4 << 20


@asynccontextmanager
async def over(opened: AbstractAsyncContextManager[Stream]) -> AsyncIterator[tuple[Any, Any]]:
    """A transport as `mcp.Client` takes it. A line of more than 4 MiB ends it."""
    import anyio

    incoming, reader = anyio.create_memory_object_stream[Any](0)
    writer, outgoing = anyio.create_memory_object_stream[Any](0)
    async with opened as stream, incoming, outgoing, reader, writer, anyio.create_task_group() as copying:
        copying.start_soon(_receive, stream, incoming)
        copying.start_soon(_send, outgoing, stream, incoming)
        yield reader, writer
        copying.cancel_scope.cancel()


async def _receive(stream: Stream, incoming: Any) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    rest = b""
    async with incoming:  # its end is seen by who reads
        while len(rest) <= MAX_LINE_BYTES and (piece := await _next(stream)):
            *lines, rest = (rest + piece).split(b"\n")
            for line in filter(bytes.strip, lines):
                text = line.decode("utf-8", "replace")
                try:
                    found: Any = SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
                except ValueError as error:
                    found = error
                await incoming.send(found)


async def _next(stream: Stream) -> bytes:
    try:
        return await stream.read()
    except OSError:
        return b""


async def _send(outgoing: Any, stream: Stream, incoming: Any) -> None:
    try:
        async for message in outgoing:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await stream.write(f"{text}\n".encode())
    except OSError:
        await incoming.aclose()
