"""Byte streams with back-pressure, over any transport."""

from __future__ import annotations

import asyncio
from typing import Protocol

PIECE_BYTES = 1 << 16


class ByteStream(Protocol):
    """One connection. Raises OSError when the other side is gone."""

    async def read(self) -> bytes:
        """The next piece, empty at the end."""

    async def write(self, data: bytes) -> None:
        """Return when there is room for more."""

    def end(self) -> None:
        """No more will be written."""

    def close(self) -> None:
        """No more is read; what was written still goes out."""

    def abort(self) -> None: ...


class SocketStream:
    """A ByteStream over a socket of asyncio."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def read(self) -> bytes:
        return await self._reader.read(PIECE_BYTES)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    def end(self) -> None:
        if not self._writer.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()
