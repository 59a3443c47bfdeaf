"""A thread in each process of a run that writes every few seconds where the process is: RUN/logs/NAME.beat.

It runs while the others wait or compute. Where it does not, a call into native code holds the interpreter; then
faulthandler, whose watchdog needs no interpreter, writes the stacks to NAME.stack.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import json
import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

log = logging.getLogger(__name__)

BEAT_S = 2.0
HELD_S = 15.0  # without a beat, then the stacks are written
BEAT_BYTES = 4096  # one block of the disk, which is there when it is full
MAX_FRAMES = 8
MACHINERY = ("asyncio", "concurrent", "monarch", "torch/utils", "torch/_", "importlib")
"""Folders of code that runs other code: where a thread stands is said by what it runs."""
_FILES = ("threading.py", "selectors.py", "queue.py", "runpy.py", "contextlib.py", "child.py", "heartbeat.py")
_RUN_ONCE = asyncio.BaseEventLoop._run_once.__code__  # type: ignore[attr-defined]
IDLE = {("select", "selectors.py"), ("_worker", "thread.py")}
WAITS = ("threading.py", "queue.py", "selectors.py", "socket.py", "ssl.py", "connection.py")
"""Files of the standard library in which a thread waits for work."""


@dataclass(slots=True)
class _Frame:
    """words: empty for machinery. since, line_since: when the call began, and when it came to its line, as seen."""

    code: CodeType
    line: int
    words: str
    since: float = 0.0
    line_since: float = 0.0


class Heartbeat:
    """Use it as `with Heartbeat(path, name):`. A process that is killed leaves its file."""

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        status: Callable[[], Mapping[str, Any]] = dict,
        every_s: float = BEAT_S,
        held_s: float = HELD_S,
    ) -> None:
        """status: what else the process says of itself. held_s: 0 writes no stacks."""
        self.path, self._name, self._status = path, name, status
        self._every_s, self._held_s = every_s, held_s
        self._ended, self._files = threading.Event(), contextlib.ExitStack()
        self._beats: FileIO
        self._dump: FileIO
        self._stacks: dict[int, list[_Frame]] = {}  # thread -> its frames
        self._cpu = (time.monotonic(), time.process_time())
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._beats = self._files.enter_context(self.path.open("wb", buffering=0))
            self._dump = self._files.enter_context(self.path.with_suffix(".stack").open("wb", buffering=0))
        except OSError as error:  # a full disk: a run does not end for its heartbeats
            log.warning("no heartbeats in %s: %s", self.path, error)
            return self
        self._write()  # here: the thread may never come to it
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._held_s:
            faulthandler.cancel_dump_traceback_later()
        self._files.close()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".stack").unlink(missing_ok=True)

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            self._write()

    def _write(self) -> None:
        """A beat; the stacks are written unless another one follows in time."""
        with contextlib.suppress(OSError, RuntimeError):  # a full disk; what another thread changes meanwhile
            self._beats.seek(0)
            self._beats.write(_as_block(self.beat()))
        if self._held_s:
            self._dump.seek(0)
            self._dump.truncate()
            faulthandler.dump_traceback_later(self._held_s, file=self._dump)

    def beat(self) -> dict[str, Any]:
        """What is written. busy: of each thread that does something, its frames from the outermost, with seconds."""
        now, cpu = time.monotonic(), time.process_time()
        used = 100 * (cpu - self._cpu[1]) / max(now - self._cpu[0], 1e-9)
        self._cpu = (now, cpu)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        before, busy = self._stacks, []
        self._stacks = {ident: _aged(frames, before.get(ident, []), now) for ident, frames in _other_threads().items()}
        for ident, stack in self._stacks.items():
            shown = [
                [one.words, round(now - one.since, 1), round(now - one.line_since, 1)] for one in stack if one.words
            ][-MAX_FRAMES:]
            if shown:
                busy.append({"thread": names.get(ident, "main"), "frames": shown})
        status = self._status()
        busy.sort(key=lambda one: one["thread"] != status.get("loop"))  # the others may not fit
        return {
            "name": self._name,
            "pid": os.getpid(),
            "place": process_space(),
            "time": time.time(),
            "cpu_percent": round(used, 1),
            "busy": busy[:4],
            **status,
        }


def _as_block(beat: dict[str, Any]) -> bytes:
    while len(data := json.dumps(beat).encode()) > BEAT_BYTES and beat["busy"]:
        beat["busy"].pop()
    return data.ljust(BEAT_BYTES)


def forget(logs: Path) -> None:
    """Remove the heartbeats of an earlier start."""
    for pattern in ("*.beat", "*.stack"):
        for path in logs.glob(pattern):
            path.unlink(missing_ok=True)


def process_space() -> str:
    """Where the number of a process means it: the host, and its namespace of processes."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _other_threads() -> dict[int, list[_Frame]]:
    """The frames of each thread but this one.

    This call's own frame must not stay in `found`: that would be a cycle, which keeps the locals of every thread, with
    the tensors of a forward pass, until a full garbage collection.
    """
    found = sys._current_frames()
    del found[threading.get_ident()]
    return {ident: _frames(frame) for ident, frame in found.items()}


def _frames(frame: FrameType) -> list[_Frame]:
    """The frames from the outermost, or from the event loop that calls the rest. None of a thread that waits for work.

    A thread that some library has started waits for its own; one that makes a call for others is at work even there.
    """
    found: list[_Frame] = []
    at: FrameType | None = frame
    at_work = False
    while at is not None and at.f_code is not _RUN_ONCE:
        code, file = at.f_code, Path(at.f_code.co_filename)
        machinery = file.name in _FILES or file.name.startswith("<frozen")
        machinery = machinery or any(f"/{folder}" in str(file) for folder in MACHINERY)
        words = "" if machinery else f"{code.co_name} ({file.parent.name}/{file.name}:{at.f_lineno})"
        found.append(_Frame(code, at.f_lineno, words))
        at_work = at_work or code.co_name == "_worker" or (at.f_back is None and code.co_name != "_bootstrap")
        at = at.f_back
    name, file = frame.f_code.co_name, Path(frame.f_code.co_filename)
    waits = file.name in WAITS and not (at_work or at is not None)
    return [] if waits or (name, file.name) in IDLE else found[::-1]


def _aged(frames: list[_Frame], before: list[_Frame], now: float) -> list[_Frame]:
    """Adds the time since each frame is there: a call is the same as long as all outer ones are in the same line."""
    same = True
    for number, one in enumerate(frames):
        old = before[number] if number < len(before) else None
        same = same and old is not None and old.code is one.code
        one.since = old.since if same and old is not None else now
        same = same and old is not None and old.line == one.line
        one.line_since = old.line_since if same and old is not None else now
    return frames
