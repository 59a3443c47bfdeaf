"""Who waits for a GPU does so until nobody holds it, however the holder ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.actors.gpu_turn import HeldGpus, wait_for_gpu

VISIBLE = "CUDA_VISIBLE_DEVICES"
HOLD = """
import time
from agentgym.actors.gpu_turn import HeldGpus
held = HeldGpus()
print("held", flush=True)
time.sleep(600)
"""
WAIT = """
from agentgym.actors.gpu_turn import wait_for_gpu
print("asks", flush=True)
wait_for_gpu(0)
print("has it")
"""


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv(VISIBLE, "1,GPU-8f2f")


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_one_waits_until_all_that_hold_its_gpu_are_done_or_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = HeldGpus()
    with start(HOLD) as other, start(WAIT) as waiting:
        assert (read(other), read(waiting)) == ("held", "asks")
        monkeypatch.setenv(VISIBLE, "2,1")
        wait_for_gpu(0)  # of a GPU that nobody holds, and of none
        wait_for_gpu(7)
        ours.release()
        ours.release()
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(0.5)
        other.kill()
        assert read(waiting) == "has it" and waiting.wait(60) == 0


def test_without_a_gpu_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VISIBLE)
    held = HeldGpus()
    wait_for_gpu(0)
    held.release()
    assert not any(tmp_path.iterdir())
