"""Distinguishes what the interpreter lacks from what the code did wrong: the first is "unsupported", never "failed"."""

from __future__ import annotations

import ast
import builtins
import re
import sys
import warnings

from agentgym_sandboxes.host.wording import Raised

MAX_PARSED_CHARS = 64 * 1024
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")
_NO_NAME_IN_MODULE = re.compile(r"(?:module|from) '([\w.]+)' has no attribute|cannot import name '\w+' from '([\w.]+)'")
_NO_ATTRIBUTE = re.compile(r"(?:type object )?'([\w.]+)'(?: object)? has no attribute '(\w+)'")
_NOT_YET = re.compile(r"^The monty |^external function |\bnot (?:yet )?support(?:ed)?\b")
_FINALIZER = re.compile(r"\bdef\s+__del__\b")
_LAZY = frozenset(("map", "filter", "zip", "enumerate", "reversed"))
_READERS = frozenset(
    ["list", "tuple", "set", "frozenset", "dict", "sorted", "sum", "max", "min", "any", "all", "iter"]
)  # of all that they are given, or as Python does: iter(map(...)) is not a list in either
_READING_METHODS = frozenset(("join", "extend", "update", "union", "fromkeys", "intersection", "difference"))
_MAYBE_LAZY = re.compile(r"\b(?:map|filter|zip|enumerate|reversed)\b|[^\s#].*\bfor\b|\(\s*\n.*\bfor\b", re.DOTALL)
_INPUT = re.compile(r"\b(?:input|stdin|fileinput|open|eval|exec|readline|getattr|globals|__builtins__)\b")
_NO_BYTES = re.compile(r"cannot convert '(?:list|tuple|set|frozenset|dict|range|map|\w*iterator)' object to bytes")
_NO_NAME = re.compile(r"name '(\w+)' is not defined")


def is_gap(raised: Raised) -> bool:
    """Whether CPython would have gone on where this was raised."""
    message = raised.message
    if "Internal error in monty" in message or message.startswith("Permission denied: "):
        return True  # it has no file system
    if raised.kind == "TypeError" and _NO_BYTES.match(message):
        return True
    if raised.kind == "NotImplementedError":
        return _NOT_YET.search(message) is not None
    if raised.kind in ("ModuleNotFoundError", "ImportError", "AttributeError"):
        for pattern in (_NO_MODULE, _NO_NAME_IN_MODULE):
            if found := pattern.search(message):
                module = next(group for group in found.groups() if group)
                return module.partition(".")[0] in sys.stdlib_module_names
    if raised.kind == "AttributeError" and (found := _NO_ATTRIBUTE.search(message)):
        module, dot, _ = found[1].partition(".")
        return (
            found[1] == "module"
            or bool(dot and module in sys.stdlib_module_names)
            or hasattr(getattr(builtins, found[1], None), found[2])
        )
    if raised.kind == "NameError" and (found := _NO_NAME.search(message)):
        return hasattr(builtins, found[1])
    return False


def lazy_value(code: str) -> str:
    """The name of something that is an iterator in Python, and a list here, and is not read at once; or "".

    Returned, kept or indexed it would behave otherwise. Code that does not parse has none.
    """
    if len(code) > MAX_PARSED_CHARS or not _MAYBE_LAZY.search(code):
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    read: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.comprehension)):
            read.add(id(node.iter))
        elif isinstance(node, ast.Starred) or (
            isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Tuple, ast.List))
        ):
            read.add(id(node.value))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[-1], (ast.In, ast.NotIn)):
            read.add(id(node.comparators[-1]))
        elif isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if name in _LAZY:
                read.add(id(node.func))  # called, so it is not handed on as a function
            if name in _READERS or name in _LAZY or method in _READING_METHODS:
                read.update(id(argument) for argument in node.args)
    for node in ast.walk(tree):
        if id(node) in read:
            continue
        if isinstance(node, ast.GeneratorExp):
            return "a generator expression"
        if isinstance(node, ast.Name) and node.id in _LAZY and isinstance(node.ctx, ast.Load):
            return node.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _LAZY:
            return node.func.id
    return ""


def never_finalized(code: str) -> str:
    """What is never called here, as Python does when an object goes; or ""."""
    return "__del__" if _FINALIZER.search(code) else ""


def reads_input(code: str) -> bool:
    """Whether a program may read its standard input, as far as its source shows."""
    return _INPUT.search(code) is not None


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
