"""What a person, or a script, types: lines of standard input, without blocking the event loop."""

from __future__ import annotations

import asyncio
import os
from typing import TextIO


class LineReader:
    """Reads lines of a terminal, a pipe or a file. A line that ends with a backslash goes on in the next one."""

    def __init__(self, source: TextIO) -> None:
        self._descriptor = source.fileno()
        self._encoding = source.encoding or "utf-8"
        self._rest = b""
        self._ended = False

    async def line(self) -> str | None:
        """The next one without its end; None at the end of the input."""
        lines: list[str] = []
        while True:
            line = await self._one()
            if line is None:
                return "\n".join(lines) if lines else None
            if not line.endswith("\\"):
                return "\n".join([*lines, line])
            lines.append(line[:-1])

    async def _one(self) -> str | None:
        while b"\n" not in self._rest and not self._ended:
            await self._readable()
            read = os.read(self._descriptor, 65536)
            self._ended = not read
            self._rest += read
        if not self._rest:
            return None
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode(self._encoding, "replace").rstrip("\r")

    async def _readable(self) -> None:
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        try:
            loop.add_reader(self._descriptor, ready.set)
        except (PermissionError, OSError):  # a file: it never keeps anyone waiting
            return
        try:
            await ready.wait()
        finally:
            loop.remove_reader(self._descriptor)
