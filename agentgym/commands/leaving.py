"""The end of a program that has used Monarch."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def leave(code: int) -> NoReturn:
    """End this process with the code, after all that Python does at its exit but for taking itself apart.

    A native thread of Monarch may still want the interpreter then. Up to Python 3.13 that ends the process with SIGABRT
    ("FATAL: exception not rethrown") and another code, now and then.
    """
    if "monarch" not in sys.modules:
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads that are no daemons
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
