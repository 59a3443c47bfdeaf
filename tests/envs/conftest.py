"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_packages() -> Iterator[None]:
    """Packages of the benchmarks' names that a test imports are forgotten, before and after it."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name in [
        name for name in sys.modules if name.partition(".")[0] in ("bfcl_eval", "tau_bench", "tau2", "agentdojo")
    ]:
        del sys.modules[name]
