"""A thread in each process of a run that writes every few seconds where the process is: RUN/logs/NAME.beat.

It runs while the others wait or compute. Where it does not, a call into native code holds the interpreter; then
faulthandler, whose watchdog needs no interpreter, writes the stacks to NAME.stack.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeAlias

BEAT_S = 2.0
HELD_S = 15.0  # without a beat, then the stacks are written
BEAT_BYTES = 4096  # one block of the disk, which is there when it is full
MAX_FRAMES = 8
MACHINERY = ("asyncio", "concurrent", "monarch", "torch/utils", "torch/_", "importlib")
"""Folders of code that runs other code: where a thread stands is said by what it runs."""
_FILES = ("threading.py", "selectors.py", "queue.py", "runpy.py", "contextlib.py", "child.py", "heartbeat.py")
_IDLE = {("select", "selectors.py"), ("_worker", "thread.py")}
_Frame: TypeAlias = tuple[object, str]  # what tells it from others, and what is said of it


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
        self._ended = threading.Event()
        self._stacks: dict[int, list[tuple[_Frame, float]]] = {}  # thread -> its frames, each with since when
        self._cpu = (time.monotonic(), time.process_time())
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self.path.with_suffix(".stack").unlink(missing_ok=True)

    def _run(self) -> None:
        with contextlib.ExitStack() as stack:
            try:
                beats = stack.enter_context(self.path.open("wb", buffering=0))
                file = stack.enter_context(self.path.with_suffix(".stack").open("wb", buffering=0))
            except OSError:  # nobody reads it then
                return
            stack.callback(faulthandler.cancel_dump_traceback_later)
            while not self._ended.is_set():
                with contextlib.suppress(OSError, RuntimeError):  # a full disk; what another thread changes meanwhile
                    beats.seek(0)
                    beats.write(_as_block(self.beat()))
                if self._held_s:
                    file.seek(0)
                    file.truncate()
                    faulthandler.dump_traceback_later(self._held_s, file=file)
                self._ended.wait(self._every_s)

    def beat(self) -> dict[str, Any]:
        """What is written. busy: of each thread that does something, its frames from the outermost, with seconds."""
        now, cpu = time.monotonic(), time.process_time()
        used = 100 * (cpu - self._cpu[1]) / max(now - self._cpu[0], 1e-9)
        self._cpu = (now, cpu)
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found, busy = sys._current_frames(), []
        self._stacks = {ident: stack for ident, stack in self._stacks.items() if ident in found}
        for ident, frame in found.items():
            frames = [] if ident == self._thread.ident else _frames(frame)
            before = self._stacks.get(ident, [])
            known = 0
            while known < min(len(before), len(frames)) and before[known][0] == frames[known]:
                known += 1
            stack = self._stacks[ident] = before[:known] + [(one, now) for one in frames[known:]]
            shown = [[one[1], round(now - since, 1)] for one, since in stack if one[1]][-MAX_FRAMES:]
            if shown:
                busy.append({"thread": names.get(ident, "main"), "frames": shown})
        return {
            "name": self._name,
            "pid": os.getpid(),
            "place": place(),
            "time": time.time(),
            "cpu_percent": round(used, 1),
            "busy": busy[:4],
            **self._status(),
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


def place() -> str:
    """Where the number of a process means it: the host, and its namespace of processes."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()} {Path('/proc/self/ns/pid').readlink()}"
    return socket.gethostname()


def _frames(frame: FrameType) -> list[_Frame]:
    """From the outermost, each with what is said of it, empty for machinery. None of a thread that waits for work."""
    found: list[_Frame] = []
    at: FrameType | None = frame
    while at is not None:
        code = at.f_code
        file = Path(code.co_filename)
        where = f"{file.parent.name}/{file.name}"
        machinery = (
            file.name in _FILES or file.name.startswith("<frozen") or any(f"/{m}" in str(file) for m in MACHINERY)
        )
        words = "" if machinery else f"{code.co_name} ({where}:{at.f_lineno})"
        found.append(((code, at.f_lineno), words))
        at = at.f_back
    innermost = (frame.f_code.co_name, Path(frame.f_code.co_filename).name)
    return [] if innermost in _IDLE else found[::-1]
