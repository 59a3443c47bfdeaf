"""How the tests are shared out between processes."""

from __future__ import annotations

import os

import pytest


@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="the tests are not shared out")
def test_a_files_tests_stay_with_one_process(request: pytest.FixtureRequest) -> None:
    """Else each process makes what they share. A pytest that pytest-xdist did not know yet lost the groups."""
    assert request.node.nodeid.endswith(f"@{__file__}")
