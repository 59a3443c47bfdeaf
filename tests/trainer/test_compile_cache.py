"""Compiled kernels are kept where the next run finds them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from agentgym.trainer.compile_cache import VARIABLE, keep_compiled


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "to be restored")
    monkeypatch.delenv(VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_torch_compiles_into_the_users_cache(cache: Path) -> None:
    keep_compiled()
    assert Path(cache_dir()) == cache / "agentgym" / "inductor"


def test_a_place_of_the_users_own_wins(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "own"))
    keep_compiled()
    assert Path(cache_dir()) == tmp_path / "own"


def test_where_the_cache_cannot_be_made_torch_decides(cache: Path) -> None:
    (cache / "agentgym").write_text("a file")
    keep_compiled()
    assert VARIABLE not in os.environ
