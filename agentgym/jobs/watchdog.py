"""Says, when nothing has ended for a while, who waits for whom and which process is silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from agentgym.actors.vitals import Vital, Vitals
from agentgym.rollout.activity import Activity
from agentgym.runs.report import duration

log = logging.getLogger(__name__)

QUIET_S = 60.0
WAITS = {  # kind of activity -> who waits, for whom
    "start": ("the run", "generator and trainer"),
    "generate": ("episodes", "generator"),
    "sandbox": ("episodes", "sandbox"),
    "reference": ("the loop", "reference"),
    "train": ("the loop", "trainer"),
    "publish": ("the loop", "trainer and generator"),
    "save": ("the run", "trainer"),
    "evaluate": ("the run", "its evaluation"),
    "stop": ("the run", "the end of its processes"),
}


@asynccontextmanager
async def watched(
    activity: Activity, read: Callable[[], Sequence[Vital]] | None = None, *, quiet_s: float = QUIET_S
) -> AsyncIterator[None]:
    """Inside, silence is logged after quiet_s, and again each time that it has lasted twice as long."""
    task = asyncio.create_task(_watch(activity, read or Vitals().read, quiet_s), name="watchdog")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _watch(activity: Activity, read: Callable[[], Sequence[Vital]], quiet_s: float) -> None:
    limit_s = quiet_s
    while True:
        await asyncio.sleep(quiet_s / 6)
        vitals, silence_s = read(), activity.silence_s()  # each reading measures the CPU since the last one
        if silence_s < quiet_s:
            limit_s = quiet_s
        elif silence_s >= limit_s:
            limit_s = 2 * silence_s
            log.warning("%s", report(activity.in_flight(), vitals, silence_s))


def report(in_flight: dict[str, list[float]], vitals: Sequence[Vital], silence_s: float) -> str:
    """in_flight: for how long each call of a kind has run, in seconds."""
    waits, services = [], set[str]()
    for kind, ages_s in in_flight.items():
        who, whom = WAITS.get(kind, ("the run", kind))
        services.update(whom.split(" and "))
        waits.append(f"{who} wait{'s' * who.startswith('the ')} for {whom} ({len(ages_s)} x {duration(max(ages_s))})")
    of_these = [vital for vital in vitals if not services or vital.name.startswith(tuple(services))]
    silent = [f"{vital.name}, process {vital.pid}, is {vital.silent}" for vital in of_these if vital.silent]
    if not silent and of_these:
        silent = ["none: all of these processes compute"]
    blame = f". Silent: {'; '.join(silent)}" if silent else ""
    return f"nothing has ended for {duration(silence_s)}: {'; '.join(waits) or 'nothing is in flight'}{blame}"
