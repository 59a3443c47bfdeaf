"""Work that goes on when whoever asked for it is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


async def lasting(tasks: dict[str, asyncio.Task[T]], key: str, work: Coroutine[None, None, T]) -> T:
    """The result of the work. It is among the tasks, under its key, until it has ended: some wait for it."""
    task = tasks[key] = asyncio.create_task(work)

    def ended(task: asyncio.Task[T]) -> None:
        del tasks[key]
        if not task.cancelled():
            task.exception()  # seen: its caller may have gone

    task.add_done_callback(ended)
    return await asyncio.shield(task)
