"""What happens in a run from now on, as server-sent events.

The id of an event is how many bytes of the run's metrics were read, so a browser that was cut off goes on there.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from agentgym.runs.liveness import Liveness
from agentgym.runs.metrics import Tail, parse_row
from agentgym.runs.steering import Steering
from agentgym.tables.episode_table import episode_files
from agentgym.tables.run import Run
from agentgym.tables.summary import processes

POLL_S = 1.0
BEAT_S = 10.0


async def live(
    run: Run, start: int | None, is_closed: Callable[[], bool], *, poll_s: float = POLL_S
) -> AsyncIterator[bytes]:
    """start: where to begin in the metrics; None is their end. Ends when `is_closed` says so."""
    metrics, events = Tail(run.log.path, start or 0), Tail(run.path / "events.log")
    await asyncio.to_thread(events.skip)
    if start is None:
        await asyncio.to_thread(metrics.skip)
    status: Any = None
    asked: Any = None
    played: Any = None
    stuck = False
    quiet_s = 0.0
    yield b"retry: 2000\n\n"
    while not is_closed():
        found = await asyncio.to_thread(_news, run, metrics, events)
        sent = [*found.sent]
        if found.status != status:
            status = found.status
            sent.append(_event("status", {"status": status[0], "reason": status[1]}, metrics.offset))
        if found.requests != asked:
            if asked is not None:
                sent.append(_event("steering", {"requests": found.requests}, metrics.offset))
            asked = found.requests
        if found.processes.is_stuck != stuck:
            stuck = found.processes.is_stuck
            sent.append(_event("processes", asdict(found.processes), metrics.offset))
        if found.played != played:
            if played is not None:
                sent.append(_event("evaluation", {"steps": sorted(found.played)}, metrics.offset))
            played = found.played
        for one in sent:
            yield one
        quiet_s = 0.0 if sent else quiet_s + poll_s
        if quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield b": beat\n\n"
        await asyncio.sleep(poll_s)


class _News(NamedTuple):
    """played: the stamp of each evaluation's episodes, by step."""

    sent: list[bytes]
    status: tuple[str, str]
    requests: list[Any]
    processes: Liveness
    played: dict[int, tuple[int, int, int]]


def _news(run: Run, metrics: Tail, events: Tail) -> _News:
    sent: list[bytes] = []
    before = metrics.offset
    lines, was_cut = metrics.lines()
    at = before
    if was_cut:  # the curves are loaded again, with these lines
        rows = run.log.read()
        sent.append(_event("reset", {"last_step": rows[-1].step if rows else None}, metrics.offset))
    for line in lines if not was_cut else ():
        at += len(line) + 1
        if (row := parse_row(line)) is not None:
            values = {key: value if math.isfinite(value) else None for key, value in row.metrics.items()}
            sent.append(_event("step", {"step": row.step, "time": row.time, "metrics": values}, at))
    for line in events.lines()[0]:
        sent.append(_event("event", event_of(line.decode("utf-8", "replace")), metrics.offset))
    status, reason, _ = run.status()
    requests = [asdict(one) for one in Steering(run.path).read()]
    played = {step: stamp for _, step, _, stamp in episode_files(run.path, ("eval",))}
    return _News(sent, (status, reason), requests, processes(run), played)


def event_of(line: str) -> dict[str, str]:
    """A line of events.log."""
    when, _, text = line.partition(" ")
    return {"time": when, "text": text}


def _event(name: str, data: Any, offset: int) -> bytes:
    """JSON has no line breaks, so one field holds it."""
    return f"id: {offset}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()
