"""Arms of a benchmark: each one's figures are printed and kept when it ends, and no process outlives its arm.

For scripts that run unattended for a limited time: what was measured before the end is not lost.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Event
from types import FrameType
from typing import Any, NoReturn, TypeVar

import psutil

from agentgym.commands.stopping import Stopped, run_until_stopped

HERE = Path(__file__).parent
Figures = dict[str, Any]
T = TypeVar("T")


class ArmFailed(Exception):
    """An arm's process ended with an error, or what it measured is not what was asked for."""


class Interrupted(Exception):
    """A process was ended because its caller was asked to stop."""


class FinishedArms:
    """Figures by arm. path: a file of JSON lines, of which arms with the same settings are not run again."""

    def __init__(self, path: Path | None, settings: Mapping[str, object]) -> None:
        self.path = path
        self.settings = json.loads(json.dumps(settings, default=str))
        self.failed: dict[str, str] = {}
        self.found: dict[str, Figures] = {}
        self._kept: dict[str, Figures] = {}
        for line in path.read_text().splitlines() if path is not None and path.is_file() else []:
            row = json.loads(line)
            if row.pop("settings") == self.settings:
                self._kept[row.pop("arm")] = row

    def is_kept(self, name: str) -> bool:
        return name in self._kept

    @contextlib.contextmanager
    def arm(self, name: str) -> Iterator[Figures]:
        """An empty dict, to be filled with the figures unless it is full: then they were kept.

        An error is printed, and the next arm can go on.
        """
        if name in self._kept:
            self.found[name] = self._kept[name]
            print(json.dumps({"arm": name, "kept": True} | self.found[name]), flush=True)
            yield self.found[name]
            return
        figures: Figures = {}
        try:
            yield figures
        except Exception as error:
            self.failed[name] = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            print(json.dumps({"arm": name, "failed": self.failed[name]}), flush=True)
            return
        self.found[name] = figures
        print(json.dumps({"arm": name} | figures), flush=True)
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a") as file:
                file.write(json.dumps({"arm": name, "settings": self.settings} | figures) + "\n")


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Inside, the first SIGTERM is SystemExit with 143, so that every `finally` runs; further ones are ignored."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_job(job: Coroutine[Any, Any, T]) -> T:
    """As asyncio.run; a signal cancels the job alone, and not what its services need to end in order."""
    try:
        return run_until_stopped(job, lambda line: print(line, file=sys.stderr))
    except Stopped as stopped:
        raise SystemExit(stopped.exit_code) from stopped


def with_paths() -> dict[str, str]:
    """The environment of a process that imports the benchmarks' own engines and rewards."""
    paths = (str(HERE), str(HERE.parent), os.environ.get("PYTHONPATH"))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(
    command: Sequence[str],
    *,
    out: Path,
    log: Path | None = None,
    limit_s: float | None = None,
    grace_s: float = 15.0,
    cwd: Path | None = None,
    stop: Event | None = None,
) -> int:
    """The exit code of a process whose standard output is in `out`, its errors in `log` or beside it.

    However this ends, all that the process started has ended: asked first, killed after grace_s. Raises
    subprocess.TimeoutExpired after limit_s, and Interrupted when `stop` is set, by another thread.
    """
    with out.open("wb") as to, log.open("wb") if log else contextlib.nullcontext() as errors:
        started = subprocess.Popen(
            command, stdout=to, stderr=errors or subprocess.STDOUT, env=with_paths(), cwd=cwd, start_new_session=True
        )
        try:
            return started.wait(limit_s) if stop is None else _wait(started, limit_s, stop)
        finally:
            end(started, grace_s)


def _wait(started: subprocess.Popen[bytes], limit_s: float | None, stop: Event) -> int:
    until = time.monotonic() + (math.inf if limit_s is None else limit_s)
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return started.wait(min(0.2, max(0.0, until - time.monotonic())))
        if stop.is_set():
            raise Interrupted
        if time.monotonic() >= until:
            raise subprocess.TimeoutExpired(started.args, limit_s or 0.0)


def end(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """End the leader of a session, its group, and its descendants in other groups."""
    family: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        family = psutil.Process(process.pid).children(recursive=True)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for one in family:
        with contextlib.suppress(psutil.Error):
            one.kill()
    process.wait()
    psutil.wait_procs(family, timeout=grace_s)


def run_or_fail(command: Sequence[str], log: Path) -> None:
    """Run it to its end. Raises ArmFailed with the end of what it wrote."""
    code = run(command, out=log)
    if code:
        raise ArmFailed(f"{' '.join(map(str, command))} ended with {code}: {log.read_text(errors='replace')[-3000:]}")


def seconds_of(metrics: Path) -> list[dict[str, float]]:
    """The rows of a run's steps."""
    rows = map(json.loads, metrics.read_text().splitlines())
    return [row for row in rows if "time/step_s" in row]
