"""Imports what a user wants every call to find imported, once, before any foreign code is here.

What that takes of memory, each call inherits; it is not counted against the call.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys
from collections.abc import Sequence

MAX_REASON_BYTES = 4000
_GENERATORS = ("numpy.random", "sympy.core.random")  # made at import; Python's own seeds itself in a fork
_taken_mib = 0  # of address space; forks inherit it


class PreloadFailed(Exception):
    """A module can't be preloaded; says which, and why."""


def preload(names: Sequence[str]) -> None:
    """Import modules, so that each fork has them. Raises PreloadFailed."""
    global _taken_mib
    num_threads, before_mib = _num_threads(), _address_space_mib()
    for name in names:
        try:
            importlib.import_module(name)
        except BaseException as error:
            raise PreloadFailed(f"{name} can't be imported: {type(error).__name__}: {error}") from error
        if _num_threads() > num_threads:
            raise PreloadFailed(f"{name} starts threads when it is imported, and a fork would lose them")
    if names:
        _taken_mib = max(0, _address_space_mib() - before_mib)


def limit_mib(memory_mib: int) -> int:
    """The limit of address space that leaves a call as much as it would have without preloaded modules."""
    return memory_mib + _taken_mib


def _address_space_mib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize() >> 20


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def reseed() -> None:
    """Reseeds in a fork: otherwise all calls would draw the same numbers, and a solution would know what its tests
    draw.
    """
    for name in _GENERATORS:
        if name in sys.modules:
            sys.modules[name].seed()
