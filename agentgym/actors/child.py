"""The first code of every process that is started for actors: `python -m agentgym.actors.child`."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import runpy
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from agentgym.actors.host_process import serve_as_host
from agentgym.actors.thread_starts import bound_thread_starts
from agentgym.runs.heartbeat import Heartbeat

MONARCH_MAIN = "monarch._src.actor.bootstrap_main"
PR_SET_PDEATHSIG = 1
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
        end_with(arguments.parent)
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


def end_with(parent: int) -> None:
    """Monarch asks for this too, but only after seconds of imports: a parent that dies meanwhile would be missed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(0)


if __name__ == "__main__":
    main()
