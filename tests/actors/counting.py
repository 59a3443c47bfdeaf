"""A small actor; other processes import it, so it lives in a module of its own."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import pickle
from pathlib import Path
from typing import Any

from agentgym.actors.actor import ServiceActor
from agentgym.actors.caller import Caller
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


class Asking(ServiceActor):
    """Calls another actor without waiting for its answers."""

    @endpoint
    async def ask(self, counting: Any, after_s: list[float]) -> None:
        """The answers come after these times."""
        self._caller = await Caller().__aenter__()
        self._answers = [self._caller.ask(counting, "sleep", pickle.dumps((seconds,))) for seconds in after_s]
        self._caller.flush()
