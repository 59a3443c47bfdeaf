"""Thresholds of the garbage collector are raised for a while, and never lowered."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from agentgym.rollout.garbage import THRESHOLDS, rare_collections


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
