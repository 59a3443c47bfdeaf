"""Runs source text as a module, and puts what it raised into words that cross a process."""

from __future__ import annotations

import sys
import types
from typing import Union

Raised = list[Union[str, int]]  # "x", the exception's type, its message, the line in the source or 0

MAX_MESSAGE = 500


def execute(code: str, name: str, filename: str, path: str = "") -> dict[str, object]:
    """Run source as module `name`; its namespace. path: where the module believes that it lies."""
    module = types.ModuleType(name)
    if path:
        module.__file__ = path
    sys.modules[name] = module
    exec(compile(code, filename, "exec", dont_inherit=True), module.__dict__)
    return module.__dict__


def describe(error: BaseException, filename: str) -> Raised:
    """What was raised. Never raises itself, whatever the exception's own methods do."""
    try:
        if isinstance(error, SyntaxError) and error.filename == filename:
            return ["x", type(error).__name__, str(error.msg)[:MAX_MESSAGE], error.lineno or 0]
        message = str(error)[:MAX_MESSAGE]
    except BaseException:
        message = ""
    return ["x", type(error).__name__, message, _line(error, filename)]


def _line(error: BaseException, filename: str) -> int:
    """The last line of the source that the error passed through."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
