"""The two kinds of error that are not a bug of ours: the user's mistake, and broken infrastructure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """The user's mistake: a wrong name, field, file or value. The command line exits with 2."""


class InfraError(RuntimeError):
    """A part of the system failed, not the agent: the work is retried, then left out, never scored 0."""


def nearest(given: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, then all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return f"{guess} Available: {', '.join(names) or 'none'}."


def waited_for(error: BaseException) -> InfraError | None:
    """The infrastructure that a call out of time was waiting for, where the cancelled wait says so by its cause."""
    import asyncio  # only here: to import the library needs no event loop

    cause = error.__cause__
    while isinstance(cause, asyncio.CancelledError):
        cause = cause.__cause__
    return cause if isinstance(cause, InfraError) else None
