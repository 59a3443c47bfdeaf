"""Says, when nothing has ended for a while, who waits for whom and which process is silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from agentgym.actors.vitals import Vitals
from agentgym.rollout.activity import Activity
from agentgym.runs.heartbeat import BEAT_S, Heartbeat, forget
from agentgym.runs.liveness import CONTROLLER, QUIET_S, Vital, report

log = logging.getLogger(__name__)

TICK_S = 1.0  # how often the event loop shows that it runs
STARTS_TAKE = 4
"""Times as long as anything else: an engine on a GPU compiles and captures graphs before it can end anything."""


@asynccontextmanager
async def watched(
    activity: Activity,
    read: Callable[[], Sequence[Vital]] | None = None,
    *,
    logs: Path | None = None,
    quiet_s: float = QUIET_S,
    beat_s: float = BEAT_S,
) -> AsyncIterator[None]:
    """Inside, silence is logged after quiet_s, and again each time that it has lasted twice as long; of starts later.

    logs: where this process's heartbeat is written, and those of others are read; None writes none.
    """
    if logs is not None:
        forget(logs)  # those of processes that were killed
    thread, ran = threading.current_thread(), time.monotonic()

    async def tick() -> None:
        nonlocal ran
        while True:
            ran = time.monotonic()
            await asyncio.sleep(TICK_S)

    watching = _watch(activity, read or Vitals(logs).read, quiet_s)
    tasks = [asyncio.create_task(watching, name="watchdog"), asyncio.create_task(tick(), name="tick")]

    def status() -> dict[str, Any]:
        calls = {kind: (len(ages_s), max(ages_s)) for kind, ages_s in activity.in_flight().items()}
        held_s = max(0.0, time.monotonic() - ran - TICK_S)
        return {"in_flight": calls, "silence_s": activity.silence_s(), "loop": thread.name, "loop_silence_s": held_s}

    beating = (
        Heartbeat(logs / f"{CONTROLLER}.beat", CONTROLLER, status=status, every_s=beat_s, held_s=0) if logs else None
    )
    with beating or contextlib.nullcontext():
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def _watch(activity: Activity, read: Callable[[], Sequence[Vital]], quiet_s: float) -> None:
    limit_s = quiet_s
    while True:
        await asyncio.sleep(quiet_s / 6)
        vitals, silence_s = read(), activity.silence_s()  # each reading measures the CPU since the last one
        starting = activity.in_flight().keys() == {"start"}
        if silence_s < quiet_s:
            limit_s = quiet_s
        elif starting and silence_s < STARTS_TAKE * quiet_s:
            continue
        elif silence_s >= limit_s:
            limit_s = 2 * silence_s
            log.warning("%s", report(activity.in_flight(), vitals, silence_s))
