"""Tells what the interpreter lacks from what the code did wrong: the first is "unsupported", never "failed"."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings

from agentgym_sandboxes.wording import Raised

MAX_PARSED_CHARS = 64 * 1024
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME_IN_MODULE = re.compile(
    r"(?:module|from) '([\w.]+)' has no attribute|cannot import name '\w+' from '([\w.]+)'"
)
_NO_ATTRIBUTE = re.compile(r"(?:type object )?'(\w+)'(?: object)? has no attribute '(\w+)'")
_NO_NAME = re.compile(r"name '(\w+)' is not defined")


def is_gap(raised: Raised) -> bool:
    """Whether CPython would have gone on where this was raised."""
    message = raised.message
    if "Internal error in monty" in message or message.startswith("Permission denied: "):
        return True  # it has no file system
    if raised.kind == "NotImplementedError":
        return message.startswith(("The monty ", "external function "))
    if raised.kind in ("ModuleNotFoundError", "ImportError", "AttributeError"):
        for pattern in (_NO_MODULE, _NO_NAME_IN_MODULE):
            if found := pattern.search(message):
                module = next(group for group in found.groups() if group)
                return module.partition(".")[0] in sys.stdlib_module_names
    if raised.kind == "AttributeError" and (found := _NO_ATTRIBUTE.search(message)):
        return hasattr(getattr(builtins, found[1], None), found[2])
    if raised.kind == "NameError" and (found := _NO_NAME.search(message)):
        return hasattr(builtins, found[1])
    return False


def syntax_error(code: str) -> Raised | None:
    """What CPython's parser says of code that the interpreter refused; None: it is fine Python.

    So both sandboxes word it alike. The source is only parsed, never compiled or run.
    """
    if len(code) > MAX_PARSED_CHARS:
        return Raised("SyntaxError", "invalid syntax")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(code)
    except SyntaxError as error:
        return Raised(type(error).__name__, str(error.msg), error.lineno or 0)
    except (ValueError, RecursionError, MemoryError) as error:
        return Raised(type(error).__name__, str(error))
    return None
