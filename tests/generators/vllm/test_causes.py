"""The reason that vLLM's own process prints, found in its log."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentgym.generators.vllm.causes import last_error, with_holders

LOG = """\
(EngineCore pid=7347) ERROR 11-22 22:17:39 [core.py:1510]     raise ValueError(
(EngineCore pid=7347) ERROR 11-22 22:17:39 [core.py:1510] ValueError: Free memory on device cuda:0 (41 GiB) is less
(EngineCore pid=7347) Process EngineCore:
(EngineCore pid=7347) Traceback (most recent call last):
(EngineCore pid=7347)     raise ValueError(
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_last_error_is_that_of_the_engine_itself(tmp_path: Path) -> None:
    log = tmp_path / "generator0.log"
    log.write_text("ImportError: an older one\n" + LOG)
    assert last_error(log) == "ValueError: Free memory on device cuda:0 (41 GiB) is less"


def test_a_log_without_an_error_and_a_stream_that_is_no_file_have_none(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("the word Error alone, or ValueError without a reason\n")
    assert [last_error(tmp_path / "log"), last_error(tmp_path / "none"), last_error(Path("/dev/null"))] == ["", "", ""]


def test_an_error_of_torchs_own_is_found_by_its_full_name(tmp_path: Path) -> None:
    """vLLM's log has it when a step ends its engine."""
    log = tmp_path / "generator0.log"
    log.write_text("(EngineCore pid=7) ERROR [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried 7.4 GiB\n")
    assert last_error(log) == "torch.OutOfMemoryError: CUDA out of memory. Tried 7.4 GiB"


def test_a_lack_of_memory_is_told_with_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'GPU-1c-2d, 999999999, 61440'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    said = with_holders("ValueError: Free memory on device cuda:0 (20/80 GiB) is less than desired")
    assert said.startswith("ValueError: Free memory on device cuda:0 (20/80 GiB)")
    assert "held of GPU-1c-2d: another program (process 999999999) 60.0 GiB" in said
    assert "Change generator.engine.gpu_memory_utilization" in said
    assert with_holders("ValueError: no such model") == "ValueError: no such model"
