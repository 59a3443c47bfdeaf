"""Distinguishes what the interpreter lacks from what the code did wrong: the first is "unsupported", never "failed"."""

from __future__ import annotations

import ast
import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import functools
import re
import sys
import warnings

from agentgym.python_syntax import parse_module
from agentgym_sandboxes.host.wording import Raised
from agentgym_sandboxes.monty.ordering import ordered_set

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
_INPUT = re.compile(r"\b(?:input|stdin|fileinput|open|eval|exec|readline|getattr|globals|__builtins__)\b")
_NO_BYTES = re.compile(r"cannot convert '(?:list|tuple|set|frozenset|dict|range|map|\w*iterator)' object to bytes")
_NO_NAME = re.compile(r"name '(\w+)' is not defined")
_NO_CONCATENATION = re.compile(r'can only concatenate list \(not "(?:bytes|dict|\w*set|range|str|tuple)"\) to list')
_OTHERWISE = frozenset(("hash", "id", "re"))  # give other results: expressions match as in Rust
_OWN_WORDS = {"RuntimeError": "Internal error in monty", "PermissionError": "Permission denied: "}  # it has no files
_TYPES = (builtins, collections, datetime, decimal, fractions, re)


def is_gap(raised: Raised, code: str = "") -> bool:
    """Whether CPython would have gone on where this was raised. What the code may have raised by itself is no gap."""
    message = raised.message
    if code and (_raises_itself(code, raised.kind) or _is_of_own_class(code, message)):
        return False
    if raised.kind in _OWN_WORDS:
        return message.startswith(_OWN_WORDS[raised.kind])
    if raised.kind == "TypeError" and _NO_CONCATENATION.match(message):
        return _extends_at(code, raised.line)
    if raised.kind == "TypeError" and _NO_BYTES.match(message):
        return True
    if raised.kind == "NotImplementedError":
        return _NOT_YET.search(message) is not None
    if raised.kind in ("ModuleNotFoundError", "ImportError", "AttributeError"):
        for pattern in (_NO_MODULE, _NO_NAME_IN_MODULE):
            if found := pattern.match(message):
                module = next(group for group in found.groups() if group)
                return module.partition(".")[0] in sys.stdlib_module_names
    if raised.kind == "AttributeError" and (found := _NO_ATTRIBUTE.match(message)):
        module, dot, _ = found[1].partition(".")
        return (
            found[1] == "module"
            or bool(dot and module in sys.stdlib_module_names)
            or any(hasattr(getattr(library, found[1], None), found[2]) for library in _TYPES)
        )
    if raised.kind == "NameError" and (found := _NO_NAME.search(message)):
        return hasattr(builtins, found[1])
    return False


@functools.lru_cache(maxsize=4)  # one code may raise a thousand times
def _parsed(code: str) -> ast.Module:
    """The tree; an empty one of code that is too long or does not parse."""
    if len(code) <= MAX_PARSED_CHARS:
        with warnings.catch_warnings(), contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
            warnings.simplefilter("ignore")
            return parse_module(code)
    return ast.Module([], [])


@functools.lru_cache(maxsize=64)
def _raises_itself(code: str, kind: str) -> bool:
    """Whether a statement of the code may raise such an exception: by its name, or by one that may be its."""
    for node in ast.walk(_parsed(code)):
        if isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
            name = raised.id if isinstance(raised, ast.Name) else kind
            if name == kind or not isinstance(getattr(builtins, name, None), type):
                return True
    return False


def _is_of_own_class(code: str, message: str) -> bool:
    """Whether a class of the code's has a name that the message quotes: `module`, say, or that of a builtin type."""
    quoted = re.findall(r"""['"](\w+)['"]""", message)
    return any(isinstance(node, ast.ClassDef) and node.name in quoted for node in ast.walk(_parsed(code)))


def _extends_at(code: str, line: int) -> bool:
    """Whether `+=` may have failed there, which takes any iterable in Python, and no `+`, which takes lists."""
    tree = _parsed(code)
    adds = [
        node for node in ast.walk(tree) if isinstance(node, (ast.AugAssign, ast.BinOp)) and type(node.op) is ast.Add
    ]
    extends = any(isinstance(node, ast.AugAssign) for node in adds)
    return extends and not any(isinstance(node, ast.BinOp) and node.lineno == line for node in adds)


def differs(code: str) -> str:
    """What this interpreter would do otherwise than Python, without a word; or ""."""
    if name := lazy_value(code):
        return f"{name} is a list here, no iterator"
    if _FINALIZER.search(code):
        return "__del__ is never called"
    tree = _parsed(code)
    for node in ast.walk(tree):
        named = {alias.name for alias in node.names} if isinstance(node, ast.Import) else set()
        named |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
        named |= {node.id} - {"re"} if isinstance(node, ast.Name) else set()
        if named & _OTHERWISE:
            return f"{min(named & _OTHERWISE)} gives other results here"
    with contextlib.suppress(RecursionError):  # of code that nobody writes
        if ordered := ordered_set(tree):
            return f"the order of a set is another one here: {ordered}"
    return ""


def lazy_value(code: str) -> str:
    """The name of something that is an iterator in Python, and a list here, and is not read at once; or "".

    Returned, kept or indexed it would behave otherwise. Code that does not parse has none.
    """
    tree = _parsed(code)
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
            parse_module(code)
    except SyntaxError as error:
        return Raised(type(error).__name__, str(error.msg), error.lineno or 0)
    except (ValueError, RecursionError, MemoryError) as error:
        return Raised(type(error).__name__, str(error))
    return None
