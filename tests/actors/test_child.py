"""A process that begins after its parent has died ends by itself: it would be nobody's."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentgym.actors.launchers import CHILD_MODULE


@pytest.mark.parametrize(("parent", "ends"), [("another", True), ("its own", False)])
def test_a_process_whose_parent_has_died_ends_at_once(parent: str, ends: bool) -> None:
    number = str(os.getpid() if parent == "its own" else os.getppid())
    command = [sys.executable, "-m", CHILD_MODULE, "--name", "late", "--parent", number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    # Who goes on finds no mesh to join.
    assert (done.returncode == 0, done.stderr == "") == (ends, ends)
