"""Thresholds of the garbage collector are raised for a while, and never lowered."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator

import pytest

from agentgym.rollout.garbage import THRESHOLDS, rare_collections, swept


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize(
    ("before", "inside"),
    [((700, 10, 10), THRESHOLDS), ((10**6, 1, 500), (10**6, THRESHOLDS[1], 500)), ((0, 10, 10), (0, 10, 10))],
)
def test_collections_are_rarer_inside_and_as_before_afterwards(
    before: tuple[int, ...], inside: tuple[int, ...]
) -> None:
    gc.set_threshold(*before)
    with pytest.raises(ZeroDivisionError), rare_collections():
        assert gc.get_threshold() == inside
        raise ZeroDivisionError
    assert gc.get_threshold() == before


class Cycle:
    def __init__(self) -> None:
        self.itself = self


async def test_what_old_cycles_hold_is_freed_all_the_same() -> None:
    gc.set_threshold(0)
    cycle = Cycle()
    gc.collect()  # now it is old
    seen = weakref.ref(cycle)
    del cycle
    assert seen() is not None
    async with swept(every_s=0.01), asyncio.timeout(20):
        while seen() is not None:
            await asyncio.sleep(0.01)
