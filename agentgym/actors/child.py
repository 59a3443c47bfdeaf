"""The first code of every process that is started for actors: `python -m agentgym.actors.child`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
import runpy
import signal
import sys
import threading
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from agentgym.actors.host_process import serve_as_host
from agentgym.killable.child import die_with_parent
from agentgym.runs.heartbeat import Heartbeat

MONARCH_MAIN = "monarch._src.actor.bootstrap_main"
PATIENCE_S = 60
GARBAGE = 50_000
"""Objects made until the collector looks for cycles. With its own 700 it walks through torch as that is imported, for a
tenth of the time until a trainer answers."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--name", required=True, help="identifies the process in a list of processes")
    parser.add_argument("--log")
    parser.add_argument("--folder", help="to work in, where there is one of that name")
    parser.add_argument("--host", metavar="ADDRESS", help="serve it as a host, until the standard input ends")
    parser.add_argument("--controller", metavar="IP", default="", help="with --host: who will use it")
    parser.add_argument("--parent", type=int, metavar="PID", help="end with this process, which has started this one")
    arguments = parser.parse_args()
    gc.set_threshold(GARBAGE)
    bound_thread_starts()
    if arguments.parent:
        die_with_parent(arguments.parent)  # Monarch asks for it, too, but after seconds of imports
    # Ctrl-C reaches the whole foreground group; the parent alone decides how a run ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if arguments.folder:
        with contextlib.suppress(OSError):
            os.chdir(arguments.folder)
    if arguments.log:  # everything that this process prints, Python or not
        descriptor = os.open(arguments.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    if arguments.host:
        if arguments.controller:  # a scheduler's notice of the end reaches every process; the controller saves first
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        serve_as_host(arguments.host, arguments.name, arguments.controller)
    sys.argv = [MONARCH_MAIN]
    with beating(arguments.log, arguments.name.partition("#")[0]):
        runpy.run_module(MONARCH_MAIN, run_name="__main__", alter_sys=True)


def beating(log: str | None, name: str) -> AbstractContextManager[object]:
    """Writes heartbeats beside the log, so that others see what an unresponsive process does."""
    return Heartbeat(Path(log).with_suffix(".beat"), name) if log else nullcontext()


class _Started(threading.Event):
    """The start of one thread: MemoryError where `Thread.start` of Python 3.11 waits forever.

    A new thread that finds no memory for its first frame ends before it has said that it began. Slices of a second: a
    process that was stopped by a signal has lost one, not all of them.
    """

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None:
            return super().wait(timeout)
        for _ in range(PATIENCE_S):
            if super().wait(1.0):
                return True
        raise MemoryError(f"a new thread did not begin within {PATIENCE_S} s: it finds no memory")


def bound_thread_starts() -> None:
    """Bounds the start of every thread of this process from now on, including those of libraries. Once a process."""
    start = threading.Thread.start

    def bounded(thread: threading.Thread) -> None:
        if not thread._started.is_set():  # type: ignore[attr-defined]
            thread._started = _Started()  # type: ignore[attr-defined]
        start(thread)

    threading.Thread.start = bounded  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
