"""Runs one whole program, as `python3 program.py` would."""

from __future__ import annotations

import atexit
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
    exit_code = 0
    try:
        execute(code, "__main__", FILENAME)
    except SystemExit as error:
        exit_code = _exit_code(error)
    except BaseException as error:
        claimed = claim(error)
        if claimed is not None:
            write_line(notes_fd, [claimed])
        if claimed == "memory":
            print("MemoryError", file=sys.stderr)
        else:
            _print_traceback(error, code)
        exit_code = 1
    threading._shutdown()  # type: ignore[attr-defined]  # waits for its threads, as an interpreter does
    atexit._run_exitfuncs()
    return exit_code


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    if isinstance(error.code, int):
        return error.code & 255
    print(error.code, file=sys.stderr)
    return 1


def _print_traceback(error: BaseException, code: str) -> None:
    """The program's own frames, with its lines."""
    linecache.cache[FILENAME] = (len(code), None, code.splitlines(True), FILENAME)
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename != FILENAME:
        trace = trace.tb_next
    traceback.print_exception(type(error), error, trace)
