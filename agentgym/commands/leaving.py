"""The end of a program: threads that do not end are not waited for, and Monarch's are not surprised."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from typing import NoReturn

THREADS_S = 2.0
GIVEN_UP_S = 10.0
given_up: list[threading.Thread] = []
"""Threads whose callers have given them up, and that did not return within GIVEN_UP_S either."""


def leave(code: int) -> NoReturn:
    """End this process with the code, after all that Python does at its exit but for taking itself apart.

    A native thread of Monarch may still want the interpreter then. Up to Python 3.13 that ends the process with SIGABRT
    ("FATAL: exception not rethrown") and another code, now and then. A thread that does not end is left after a signal,
    and where it was given up.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    others = threading.Thread(target=_wait_for_others, daemon=True)
    others.start()
    others.join(THREADS_S if code > 128 or any(thread.is_alive() for thread in given_up) else None)
    if not others.is_alive():
        if "monarch" not in sys.modules:
            sys.exit(code)
        threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _wait_for_others() -> None:
    """Waits for other threads as Python does at exit, but in a thread that can be abandoned."""
    for call in reversed(threading._threading_atexits):  # type: ignore[attr-defined]
        call()  # ends the threads of pools
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.main_thread():
            thread.join()
