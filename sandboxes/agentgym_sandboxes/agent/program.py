"""Runs one whole program, as `python3 program.py` would."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import linecache
import sys
import threading
import traceback

from .claims import claim
from .frames import write_line
from .source import execute

FILENAME = "<program>"


def run_program(payload: bytes, notes_fd: int) -> int:
    """Run the source; its exit code. A line on notes_fd says what limit ended it, if one did."""
    code = payload.decode("utf-8", "surrogatepass")
    sys.argv = ["program"]
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _reopened(fd, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    exit_code = 0
    try:
        execute(code, "__main__", FILENAME, path=sys.argv[0])
    except SystemExit as error:
        exit_code = exit_code_of(error)
    except BaseException as error:
        claimed = claim(error)
        if claimed is not None:
            write_line(notes_fd, [claimed])
        linecache.cache[FILENAME] = (len(code), None, code.splitlines(True), FILENAME)
        print_error(error, claimed, FILENAME)
        exit_code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads, as an interpreter does
    atexit._run_exitfuncs()
    _let_go()
    return exit_code


def _reopened(fd: int, old: io.TextIOWrapper) -> io.TextIOWrapper:
    """A standard stream that knows what its descriptor is: the old one was opened on another.

    Each line is written at once: a program that is killed has no other chance to show what it printed.
    """
    mode = "w" if fd else "r"
    buffered = open(fd, mode + "b", closefd=False)  # noqa: SIM115
    buffered.raw.name = old.name  # type: ignore[attr-defined]
    stream = io.TextIOWrapper(
        buffered, old.encoding, old.errors, "\n", line_buffering=fd > 0, write_through=old.write_through
    )
    stream.mode = mode  # type: ignore[misc]
    return stream


def _let_go() -> None:
    """What an interpreter does at its end: `__del__` is called, files that were left open are written."""
    _flush()
    if threading.active_count() == 1:  # one that still runs would miss its names
        with contextlib.suppress(KeyError, AttributeError):
            sys.modules["__main__"].__dict__.clear()
        gc.collect()
        _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.__stdout__):  # the program may have put another in the place of the first
        with contextlib.suppress(Exception):
            stream.flush()  # type: ignore[union-attr]


def exit_code_of(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 255
    print(error.code, file=sys.stderr)
    return 1


def print_error(error: BaseException, claimed: str | None, filename: str) -> None:
    """What Python would print: the code's own frames, from the first whose file begins with filename."""
    if claimed == "memory":
        print("MemoryError", file=sys.stderr)
        return
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(filename):
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
