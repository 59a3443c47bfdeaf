"""The reason that vLLM's own process prints, found in its log."""

from __future__ import annotations

from pathlib import Path

from agentgym.generators.vllm.causes import last_error

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
