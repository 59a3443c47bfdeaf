"""Each test of the suites fails for a component that breaks its promise, and quotes the docstring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from broken import BROKEN
from local_session import LocalSessions

from agentgym.testing import SessionConformance
from agentgym.testing.suite import Suite, docstring, promises

CASES = [(suite, test) for suite, broken in BROKEN.items() for test in broken]


@pytest.mark.parametrize(("suite", "test"), CASES, ids=[f"{suite.__name__}-{test}" for suite, test in CASES])
def test_a_broken_promise_is_found_and_quoted(suite: type[Suite], test: str) -> None:
    where, text = promises(suite)[test]
    with pytest.raises(AssertionError) as failed:
        run(suite, test, BROKEN[suite][test])
    assert str(failed.value).endswith(f"broken promise of {where.replace(':', '.')}: {text!r}")


def run(suite: type[Suite], test: str, broken: Callable[[], Any] | Mapping[str, object]) -> None:
    """One test of a suite, for what is broken."""
    given = {"make": lambda self: broken()} if callable(broken) else dict(broken)
    mine = type("TestMine", (suite,), {"walls_s": (0.5,), **given})
    mine.setup_class()
    try:
        getattr(mine(), test)()
    finally:
        mine.teardown_class()


@pytest.mark.parametrize("suite", BROKEN)
def test_every_promise_is_of_a_docstring_and_has_a_component_that_breaks_it(suite: type[Suite]) -> None:
    found = promises(suite)
    assert found.keys() == BROKEN[suite].keys()
    assert {where: text for where, text in found.values() if text not in docstring(where)} == {}


@pytest.mark.parametrize("test", promises(SessionConformance))
def test_a_right_session_passes(test: str) -> None:
    run(SessionConformance, test, LocalSessions)
