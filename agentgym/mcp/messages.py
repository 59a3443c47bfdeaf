"""What a server sends as JSON that the package `mcp` cannot read: half of a character, as JavaScript writes it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self, cast

from agentgym.utf8 import clean


@asynccontextmanager
async def readable(transport: Any) -> AsyncIterator[tuple[Any, Any]]:
    """The transport; messages with half of a character, which the package drops without an answer, are read too."""
    async with transport as (lines, writer):
        yield _Lines(lines), writer


class _Lines:
    """A transport's stream of messages."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines

    async def receive(self) -> Any:
        return _message(await self._lines.receive())

    async def aclose(self) -> None:
        await self._lines.aclose()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return _message(await anext(self._lines))

    async def __aenter__(self) -> Self:
        await self._lines.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._lines.__aexit__(*error)


def _message(item: Any) -> Any:
    """A message of what the package could not read; the item itself where that is no JSON either."""
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    if not isinstance(item, ValueError):
        return item
    try:
        read = clean(json.loads(cast(Any, item).errors()[0]["input"]))
        return SessionMessage(jsonrpc_message_adapter.validate_python(read, by_name=False))
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return item
