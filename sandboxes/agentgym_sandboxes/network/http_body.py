"""Passes a request's body on, no byte more, so that no second request hides behind it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable

from agentgym_sandboxes.network.http_head import BadRequest
from agentgym_sandboxes.network.streams import PIECE_BYTES, Input

_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})\r\n")


async def copy_body(source: Input, send: Callable[[bytes], Awaitable[None]], body_bytes: int | None) -> None:
    """body_bytes: None is a chunked body; its chunks are framed anew, extensions and trailers refused.

    Raises BadRequest, and EOFError when the body ends too soon.
    """
    if body_bytes is not None:
        return await _copy(source, send, body_bytes)
    while True:
        line = await source.until(b"\r\n", 20)
        match = _CHUNK_SIZE.fullmatch(line or b"")
        if match is None:
            raise BadRequest(400, "a malformed chunk")
        size = int(match.group(1), 16)
        if size:
            await send(b"%x\r\n" % size)
            await _copy(source, send, size)
        if await source.until(b"\r\n", 2) is None:
            raise BadRequest(400, "a malformed chunk")
        await send(b"\r\n" if size else b"0\r\n\r\n")
        if not size:
            return


async def _copy(source: Input, send: Callable[[bytes], Awaitable[None]], size: int) -> None:
    while size:
        piece = await source.some(min(size, PIECE_BYTES))
        size -= len(piece)
        await send(piece)
