"""The view of a folder with one finished run, asked without a port."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from view_runs import write_run

from agentgym.tables.roots import Roots
from agentgym.view.app import View, build_app
from agentgym.view.security import Access

URL = "http://127.0.0.1:8710"
Open = Callable[..., TestClient]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    write_run(tmp_path / "runs", "one")
    return tmp_path / "runs"


@pytest.fixture
def open_view() -> Iterator[Open]:
    """A client of the view of some folders; further arguments are the view's."""
    with ExitStack() as stack:

        def make(*folders: Path, url: str = URL, access: Access | None = None, **fields: Any) -> TestClient:
            view = View(roots=Roots.of(folders), **fields)
            app = build_app(view, access or Access.of("127.0.0.1", 8710))
            return stack.enter_context(TestClient(app, base_url=url))

        yield make


@pytest.fixture
def view(runs: Path, open_view: Open) -> TestClient:
    return open_view(runs)
