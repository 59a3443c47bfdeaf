"""A small actor; other processes import it, so it lives in a module of its own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from agentgym.actors.actor import ServiceActor
from agentgym.actors.endpoint import endpoint


class Counting(ServiceActor):
    """Counts."""

    def __init__(self, start: int) -> None:
        self._count = start

    @endpoint
    async def add(self, number: int) -> int:
        self._count += number
        return self._count

    async def reset(self) -> None:
        """Not an endpoint."""

    @endpoint
    async def pid(self) -> int:
        return os.getpid()

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
    async def say(self, words: str) -> None:
        os.write(2, words.encode() + b"\n")
