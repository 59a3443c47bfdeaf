"""Exceptions that cross between processes: of builtin classes, or of classes created again under their names."""

from __future__ import annotations

import builtins
from typing import NamedTuple


class Told(NamedTuple):
    """What the other side raised, to be raised here."""

    error: BaseException


def parents(kind: type) -> list[type]:
    """The exception classes that a class of exceptions derives from; for one that tests can't meet, none."""
    found = [base for base in kind.__bases__ if issubclass(base, BaseException)]
    return found if issubclass(kind, Exception) else [RuntimeError]


def made_class(name: object, bases: list[object]) -> type:
    """An exception class of that name. Raises TypeError or ValueError when there can be none."""
    kinds = [base for base in bases if isinstance(base, type) and issubclass(base, Exception)]
    if type(name) is not str or not name.isidentifier() or len(name) > 100 or len(kinds) != len(bases):
        raise ValueError("no exception class")
    return type(name, tuple(kinds) or (RuntimeError,), {"__str__": _words, "__module__": "solution"})


def tell(message: object, kind: object, args: object, attributes: object) -> Told:
    """The exception to raise. A StopIteration must not end an iteration of the tests' own."""
    if type(message) is not str or not (isinstance(kind, type) and issubclass(kind, Exception)):
        raise ValueError("no exception")
    if issubclass(kind, (StopIteration, StopAsyncIteration)):
        kind = RuntimeError
    known = getattr(builtins, kind.__name__, None) is kind
    error = refused(_make(kind, args, message if known else None))
    if not known:
        error.__dict__["_words"] = message
    for name, value in attributes:  # type: ignore[attr-defined]
        if type(name) is str and not name.startswith("_"):
            error.__dict__[name] = value
    return Told(error)


def refused(error: Exception) -> Exception:
    """Mark an exception that came of using the other side's object: that object is not to swallow it."""
    error.__dict__["_refused"] = True
    return error


def may_swallow(error: BaseException | None) -> bool:
    """Whether a context manager of the other side's may: neither what a test asserts nor what came of its own."""
    return error is None or not (isinstance(error, AssertionError) or "_refused" in vars(error))


def _make(kind: type[Exception], args: object, message: str | None) -> Exception:
    """An exception of these arguments; when it would read otherwise than it did, of its message."""
    try:
        error = kind(*args)  # type: ignore[misc]
        if message is None or str(error) == message:
            return error
    except (TypeError, ValueError):
        pass
    try:
        return kind(message or "")
    except TypeError:  # the errors of encoding want five arguments
        return ValueError(message or "")


def _words(error: BaseException) -> str:
    return str(error.__dict__.get("_words", BaseException.__str__(error)))
