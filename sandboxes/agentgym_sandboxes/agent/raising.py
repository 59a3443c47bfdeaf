"""Exceptions that cross between processes: of builtin classes, or of classes created again under their names."""

from __future__ import annotations

import builtins
import contextlib
import sys
from types import MemberDescriptorType
from typing import Any, NamedTuple

from .source import MAX_MESSAGE

_GROUP: Any = getattr(builtins, "BaseExceptionGroup", ())  # from Python 3.11 on
_STEERING = (StopIteration, StopAsyncIteration, GeneratorExit)
"""What Python itself takes for the end of an iteration: raised by a solution, it would end one of the tests' own."""
_LIBRARY = frozenset((
    "_csv", "_pickle", "_queue", "argparse", "binascii", "configparser", "copy", "dataclasses", "decimal",
    "email.errors", "getopt", "graphlib", "http.client", "ipaddress", "json.decoder", "lzma", "re", "shutil", "socket",
    "sqlite3", "statistics", "struct", "subprocess", "tarfile", "urllib.error", "uuid", "xml.etree.ElementTree",
    "xml.parsers.expat", "zipfile", "zlib",
))  # fmt: skip
"""Modules whose exceptions are the same class on both sides. None is of a framework that runs code, such as asyncio
or unittest: those swallow some of their own."""


class Relayed(NamedTuple):
    """What the other side raised, to be raised here; or an exception in a group, to be written."""

    error: BaseException


def parents(kind: type) -> list[type]:
    """The exception classes that a class of exceptions derives from."""
    return [base for base in kind.__bases__ if issubclass(base, BaseException)]


def crossing_name(kind: type) -> str:
    """How a builtin class is named to the other side."""
    return "RuntimeError" if issubclass(kind, _STEERING) else kind.__name__


def library_name(kind: type) -> str:
    """The name under which `made_class` finds a class of the standard library; of another class, its own."""
    name = f"{kind.__module__}.{kind.__name__}"
    return name if _found(name) is kind else kind.__name__


def made_class(name: object, bases: list[object]) -> type:
    """An exception class of that name. Raises TypeError or ValueError when there can be none."""
    kinds = [base for base in bases if isinstance(base, type) and issubclass(base, BaseException)]
    if type(name) is not str or len(name) > 100 or len(kinds) != len(bases):
        raise ValueError("no exception class")
    found = _found(name)
    if found is not None:
        return found
    name = name.rpartition(".")[2]
    if not name.isidentifier():
        raise ValueError("no exception class")
    return type(name, tuple(kinds) or (RuntimeError,), {"__str__": _words, "__module__": "solution"})


def _found(name: str) -> type | None:
    """A class of the standard library, where this process has its module."""
    module, _, name = name.rpartition(".")
    found = getattr(sys.modules.get(module), name, None) if module in _LIBRARY else None
    return found if isinstance(found, type) and issubclass(found, Exception) else None


def arguments(error: BaseException) -> tuple[object, ...]:
    """What an exception was built with; of a group, its message and its exceptions, each to be written as `Relayed`."""
    if isinstance(error, _GROUP):
        return error.message, tuple(Relayed(child) for child in error.exceptions)
    return error.args


def members(error: BaseException) -> list[tuple[str, object]]:
    """The fields of a builtin class that its arguments need not hold, as the name of a file."""
    found = []
    for base in type(error).__mro__:
        if base.__module__ == "builtins" and not isinstance(error, _GROUP):
            for name, field in vars(base).items():
                value = field.__get__(error) if type(field) is MemberDescriptorType else None
                if type(value) in (int, str, bytes):
                    found.append((name, value))
    return found


def relayed(message: object, kind: object, args: Any, attributes: object) -> Relayed:
    """The exception to raise. Raises TypeError or ValueError for what is none."""
    if type(message) is not str or not (isinstance(kind, type) and issubclass(kind, BaseException)):
        raise ValueError("no exception")
    if issubclass(kind, _STEERING):
        kind = RuntimeError
    if issubclass(kind, _GROUP):
        text, children = args
        args = (text, list(children))
    return Relayed(refused(_make(kind, args, message, attributes)))


def refused(error: BaseException) -> BaseException:
    """Mark an exception that came of using the other side's object: that object is not to swallow it."""
    error.__dict__["_refused"] = True
    return error


def may_swallow(error: BaseException | None) -> bool:
    """Whether a context manager of the other side's may: neither what a test asserts nor what came of its own."""
    return error is None or not (isinstance(error, AssertionError) or "_refused" in vars(error))


def made(kind: type[BaseException], message: str) -> BaseException:
    """An exception of a class that reads so, whatever the class takes to make one."""
    return _make(kind, (message, [RuntimeError(message)]) if issubclass(kind, _GROUP) else (message,), message, ())


def _make(kind: type[BaseException], args: Any, message: str, attributes: Any) -> BaseException:
    """An exception of these arguments; when it would read otherwise than it did, of its message."""
    own = kind.__str__ is _words
    for given in (args, (message,), (_Said(message),)):
        try:
            error = _with(kind(*given), attributes)
            if own or str(error)[:MAX_MESSAGE] == message:
                break
        except (TypeError, ValueError, OverflowError):
            pass
    else:  # it takes other arguments, and these do not cross: of a class that derives from it, without its __init__
        kind = kind if own else type(kind.__name__, (kind,), {"__str__": _words, "__module__": kind.__module__})
        error = _with(kind.__new__(kind, *args), attributes)
        own = True
    if own:
        error.__dict__["_words"] = message
    return error


def _with(error: BaseException, attributes: Any) -> BaseException:
    for name, value in attributes:
        if type(name) is not str or name.startswith("_"):
            continue
        if type(getattr(type(error), name, None)) is MemberDescriptorType:
            with contextlib.suppress(AttributeError, TypeError):  # it can't be set
                setattr(error, name, value)
        else:
            error.__dict__[name] = value
    return error


class _Said(str):
    """A key that shows itself as a KeyError did, whose message is the `repr` of its key."""

    __repr__ = str.__str__


def _words(error: BaseException) -> str:
    return str(error.__dict__.get("_words", BaseException.__str__(error)))
