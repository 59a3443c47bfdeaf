"""Byte streams with back-pressure, whatever carries them, and reading with a look ahead."""

from __future__ import annotations

import asyncio
from typing import Protocol

PIECE_BYTES = 1 << 16


class ByteStream(Protocol):
    """One connection. Raises OSError when the other side is gone."""

    async def read(self) -> bytes:
        """The next piece, empty at the end."""
        ...

    async def write(self, data: bytes) -> None:
        """Return when there is room for more."""
        ...

    def end(self) -> None:
        """No more will be written."""
        ...

    def close(self) -> None:
        """No more is read; what was written still goes out."""
        ...

    def abort(self) -> None: ...


class SocketStream:
    """A socket of asyncio's as a ByteStream."""

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


class Input:
    """Reads a stream up to marks and counts; what was read too far waits for the next read."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._buffer = bytearray()

    async def until(self, mark: bytes, max_bytes: int) -> bytes | None:
        """All up to and with the mark; None when it does not come within max_bytes. Raises EOFError."""
        searched = 0
        while True:
            found = self._buffer.find(mark, searched)
            if found >= 0:
                return self._take(found + len(mark)) if found + len(mark) <= max_bytes else None
            if len(self._buffer) >= max_bytes:
                return None
            searched = max(0, len(self._buffer) - len(mark) + 1)
            await self._fill()

    async def some(self, max_bytes: int) -> bytes:
        """At least one byte. Raises EOFError."""
        if not self._buffer:
            await self._fill()
        return self._take(min(max_bytes, len(self._buffer)))

    async def _fill(self) -> None:
        piece = await self._stream.read()
        if not piece:
            raise EOFError
        self._buffer += piece

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken
