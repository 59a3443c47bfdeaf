"""What happens in a run from now on, as server-sent events.

The id of an event is how many bytes of the run's metrics were read, so a browser that was cut off goes on there.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentgym.runs.liveness import Liveness
from agentgym.runs.steering import Steering, as_json
from agentgym.view.metrics import parse_row
from agentgym.view.run import Run
from agentgym.view.summary import processes

POLL_S = 1.0
BEAT_S = 10.0
MAX_READ = 2**22


@dataclass(slots=True)
class Tail:
    """The end of a file that grows. offset: bytes of whole lines that were read."""

    path: Path
    offset: int = 0
    _inode: int = 0

    def lines(self) -> tuple[list[bytes], bool]:
        """Whole new lines, and whether another file took the place of the one that was read before."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                replaced = self._is_replaced(file, found)
                self.offset, self._inode = 0 if replaced else self.offset, found.st_ino
                file.seek(self.offset)
                data = file.read(MAX_READ)
        except OSError:
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.splitlines(), replaced

    def skip(self) -> None:
        """Skips to the end of the last whole line."""
        try:
            data, self._inode = self.path.read_bytes(), self.path.stat().st_ino
        except OSError:
            return
        self.offset = data.rfind(b"\n") + 1

    def _is_replaced(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Also where a client gives an offset that is not the end of a line."""
        if not self.offset:
            return False
        if self._inode and self._inode != found.st_ino:
            return True
        file.seek(self.offset - 1)
        return file.read(1) != b"\n"


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
    stuck = False
    quiet_s = 0.0
    yield b"retry: 2000\n\n"
    while not is_closed():
        found = await asyncio.to_thread(_news, run, metrics, events)
        sent = [*found[0]]
        if found[1] != status:
            status = found[1]
            sent.append(_event("status", {"status": status[0], "reason": status[1]}, metrics.offset))
        if found[2] != asked:
            if asked is not None:
                sent.append(_event("steering", {"requests": found[2]}, metrics.offset))
            asked = found[2]
        if found[3].is_stuck != stuck:
            stuck = found[3].is_stuck
            sent.append(_event("processes", asdict(found[3]), metrics.offset))
        for one in sent:
            yield one
        quiet_s = 0.0 if sent else quiet_s + poll_s
        if quiet_s >= BEAT_S:
            quiet_s = 0.0
            yield b": beat\n\n"
        await asyncio.sleep(poll_s)


def _news(run: Run, metrics: Tail, events: Tail) -> tuple[list[bytes], tuple[str, str], list[Any], Liveness]:
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
    requests = [as_json(one) for one in Steering(run.path).read()]
    return sent, (status, reason), requests, processes(run)


def event_of(line: str) -> dict[str, str]:
    """A line of events.log."""
    when, _, text = line.partition(" ")
    return {"time": when, "text": text}


def _event(name: str, data: Any, offset: int) -> bytes:
    """JSON has no line breaks, so one field holds it."""
    return f"id: {offset}\nevent: {name}\ndata: {json.dumps(data)}\n\n".encode()
