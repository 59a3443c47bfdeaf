"""No process of a run keeps what its steps make."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks.structure import ROOT

pytest.importorskip("pydantic_monty")
pytest.importorskip("torchtitan")

STEPS = 200
ALLOWED_KIB = 256  # a step, of warming up; a copy of the tiny policy's weights has 3,700


@pytest.mark.hostile
@pytest.mark.timeout(1200)
def test_no_process_grows_with_the_steps_of_a_run() -> None:
    """The heartbeats once kept a copy of the weights whenever they met a forward pass."""
    command = [sys.executable, "benchmarks/soak.py", "--steps", STEPS, "--every", 4, "--beat-s", 0.05]
    command += ["--allow", ALLOWED_KIB]
    ran = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
