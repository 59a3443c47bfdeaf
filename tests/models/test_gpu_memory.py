"""Who holds a GPU's memory, read from the answers that nvidia-smi gives."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym.models.gpu_memory import free_by_gpu, holders_by_gpu, holders_of_host
from agentgym.models.out_of_memory import out_of_memory

GIB = 2**30
Smi = Callable[[str, str], None]


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Smi:
    """A program of that name, which answers so when it is asked for GPUs, and for processes."""

    def write(gpus: str, processes: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f'#!/bin/sh\ncase "$1" in\n*gpu=*) echo "{gpus}";;\n*) echo "{processes}";;\nesac\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return write


def test_free_memory_is_read_by_uuid(smi: Smi) -> None:
    smi("GPU-1c-2d, 20480\nGPU-3e-4f, [N/A]", "")
    assert free_by_gpu() == {"1c-2d": 20 * GIB}


def test_holders_are_named_by_their_logs(smi: Smi, tmp_path: Path) -> None:
    """vLLM's own process, too, writes into its replica's log."""
    pytest.importorskip("torch")  # whose error it is
    with (tmp_path / "generator0.0.log").open("wb") as log:
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=log)
    try:
        smi("", f"GPU-1c-2d, {child.pid}, 1024\nGPU-1c-2d, 999999999, [N/A]")
        first, other = holders_by_gpu()["1c-2d"]
        assert str(first) == f"generator0.0 (process {child.pid}) 1.0 GiB"
        assert str(other) == "another program (process 999999999) an unknown amount"
        report = str(out_of_memory(RuntimeError("CUDA error: out of memory"), "Lower it"))
        assert f"held of GPU-1c-2d: {first}, {other}" in report and "Lower it; a run" in report
    finally:
        child.communicate(b"\n")


def test_the_hosts_memory_is_told_of_this_process_and_the_runs_others(tmp_path: Path) -> None:
    log = tmp_path / "trainer.0.log"
    program = "from agentgym.models.gpu_memory import holders_of_host\nprint(*holders_of_host(), sep='\\n')"
    with (tmp_path / "generator0.0.log").open("wb") as file:
        beside = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=file)
    try:
        with log.open("wb") as file:
            out = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=file, text=True).stdout
    finally:
        beside.communicate(b"\n")
    assert re.search(rf"generator0.0 \(process {beside.pid}\) [1-9]\d* MiB", out), log.read_text()
    assert "trainer.0 (process " in out
    assert f"(process {os.getpid()})" in out, "the one that started it"
    assert os.getpid() in {holder.pid for holder in holders_of_host()}


@pytest.mark.parametrize("error", [RuntimeError("shapes differ"), ValueError("out of memory of mine"), OSError("CUDA")])
def test_other_errors_are_left_as_they_are(error: Exception) -> None:
    assert out_of_memory(error, "") is None


def test_a_cause_counts() -> None:
    try:
        try:
            raise MemoryError
        except MemoryError as inner:
            raise RuntimeError("the batch could not be packed") from inner
    except RuntimeError as error:
        assert "out of the host's memory" in str(out_of_memory(error, "Lower it"))
