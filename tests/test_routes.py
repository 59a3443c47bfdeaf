"""Routes follow their tokens from turns to samples, and through files."""

from __future__ import annotations

import random
from array import array

import pytest

from agentgym.routes import UNKNOWN, Routes, joined


def routes_of(values: list[list[int]], start: int = 0) -> Routes:
    return Routes(width=len(values[0]), start=start, ids=array("H", [one for row in values for one in row]).tobytes())


def ids(routes: Routes) -> list[int]:
    return array("H", routes.ids).tolist()


def test_a_token_keeps_the_route_that_was_recorded_first() -> None:
    first = routes_of([[1, 2], [3, 4], [5, 6]])
    again = routes_of([[9, 9], [9, 9], [9, 9], [7, 8]])  # the next turn computed all by newer weights
    found = joined([first, None, again], 6)
    assert found is not None and ids(found) == [1, 2, 3, 4, 5, 6, 7, 8, *[UNKNOWN] * 4]
    gap = joined([first, routes_of([[7, 8]], start=4)], 5)
    assert gap is not None and ids(gap) == [1, 2, 3, 4, 5, 6, UNKNOWN, UNKNOWN, 7, 8]
    assert joined([None, None], 3) is None
    with pytest.raises(ValueError, match=r"widths \[1, 2\]"):
        joined([first, routes_of([[1]])], 3)


def test_files_give_routes_back() -> None:
    routes = Routes(width=5, start=3, ids=random.Random(0).randbytes(70))
    assert Routes.of_text(routes.to_text()) == routes
    with pytest.raises(ValueError, match="no routes of width 5"):
        Routes(width=5, ids=b"123")
