"""How often Python looks for garbage while episodes are played."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

THRESHOLDS = (50_000, 20, 100)  # Python's own are (700, 10, 10), made for programs with few objects that live


@contextmanager
def rare_collections() -> Iterator[None]:
    """Look for cycles of garbage less often inside this block.

    Each search walks through what is alive: with 10,000 episodes that took more processor time than playing them.
    A process that has set higher thresholds, or none, keeps them.
    """
    before = gc.get_threshold()
    if before[0]:
        gc.set_threshold(*map(max, zip(before, THRESHOLDS, strict=True)))
    try:
        yield
    finally:
        gc.set_threshold(*before)
