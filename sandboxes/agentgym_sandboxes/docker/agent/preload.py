"""Imports what a user wants every call to find imported, once, before any foreign code is here."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence

MAX_REASON_BYTES = 4000
_GENERATORS = (
    "numpy.random",
    "sympy.core.random",
)  # of random numbers, made at import; Python's own seeds itself


class PreloadFailed(Exception):
    """A module can't be preloaded; says which, and why."""


def preload(names: Sequence[str]) -> None:
    """Import modules, so that each fork has them. Raises PreloadFailed."""
    num_threads = _num_threads()
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            raise PreloadFailed(f"{name} can't be imported: {type(error).__name__}: {error}") from error
        if _num_threads() > num_threads:
            raise PreloadFailed(f"{name} starts threads when it is imported, and a fork would lose them")
    if names:
        os.register_at_fork(after_in_child=_seed_anew)


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _seed_anew() -> None:
    """Else all calls would draw the same numbers, and a solution would know what its tests are going to draw."""
    for name in _GENERATORS:
        if name in sys.modules:
            sys.modules[name].seed()
