"""A small actor; other processes import it, so it lives in a module of its own."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
from pathlib import Path

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint


def resident_bytes() -> int:
    """Of this process, when what is free was given back."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Counting(ServiceActor):
    """Counts."""

    def __init__(self, start: int) -> None:
        self._count = start

    @endpoint
    async def add(self, number: int) -> int:
        self._count += number
        return self._count

    @endpoint
    async def subtract(self, number: int) -> None:
        """Never raises, and answers nothing."""
        self._count = max(0, self._count - number)

    async def reset(self) -> None:
        """Not an endpoint."""

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

    @endpoint
    async def garbage(self) -> int:
        """Objects made until the collector looks for cycles."""
        return gc.get_threshold()[0]

    @endpoint
    async def variable(self, name: str) -> str:
        if name not in os.environ:
            raise ValueError(f"no variable {name!r}")
        return os.environ[name]

    @endpoint
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @endpoint
    async def wait_for(self, path: str) -> None:
        while not Path(path).exists():
            await asyncio.sleep(0.02)

    @endpoint
    async def resident_bytes(self) -> int:
        return resident_bytes()

    @endpoint
    async def say(self, words: str) -> None:
        os.write(2, words.encode() + b"\n")
