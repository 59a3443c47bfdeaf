"""What a dead process is quoted with: the line of its error, whatever language wrote the trace."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.actors.exits import SHOWN, last_output, without_traces

SOCKET = "RuntimeError: constructing unix socket address (113 bytes); path must fit within SUN_LEN"
RUST = f"""\
Traceback (most recent call last):
  File "bootstrap_main.py", line 39, in main
    exit_code = await bootstrap_main()
                ^^^^^^^^^^^^^^^^^^^^^^
{SOCKET}

Caused by:
    0: path must be shorter
    1: of a socket

Stack backtrace:
""" + "".join(
    f"  {n}: <tokio::runtime::task::harness::Harness<{'x' * 200}>>::poll\n             at ./a.rs:{n}\n"
    for n in range(99)
)
PANIC = "thread 'main' panicked at src/a.rs:1:2:\nno such thing\nstack backtrace:\n   0: rust_begin_unwind\n   1: main"
TORCH = """\
RuntimeError: CUDA error: out of memory
Exception raised from malloc at ../c10/cuda/a.cpp:9 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in libc10.so)
frame #1: <unknown function> + 0x1 (0x7f in libtorch.so)
"""
FAULT = """\
Fatal Python error: Segmentation fault

Current thread 0x00007f (most recent call first):
  File "a.py", line 1 in f
  File "a.py", line 9 in <module>
"""
CHAINED = "def f(): raise ValueError('a\\nb')\ntry: f()\nexcept ValueError: raise KeyError('c')"
GROUPED = "raise ExceptionGroup('g', [ValueError('a'), ExceptionGroup('h', [KeyError('b')])])"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RUST, f"{SOCKET}\n\nCaused by:\n    0: path must be shorter\n    1: of a socket"),
        (PANIC, "thread 'main' panicked at src/a.rs:1:2:\nno such thing"),
        (TORCH, "RuntimeError: CUDA error: out of memory"),
        (FAULT, "Fatal Python error: Segmentation fault"),
        ("loading\n  weights: 3\n  tokens: 4", "loading\n  weights: 3\n  tokens: 4"),
    ],
)  # fmt: skip
def test_the_error_is_quoted_and_not_its_frames(text: str, said: str, tmp_path: Path) -> None:
    assert without_traces(text) == said
    log = tmp_path / "log"
    log.write_text("of another process\n" + text)
    assert last_output(log, len("of another process\n")) == said


@pytest.mark.parametrize(
    ("code", "lines"),
    [
        (CHAINED, ["ValueError: a", "b", "KeyError: 'c'"]),
        (GROUPED, ["ExceptionGroup: g", "ValueError: a", "KeyError: 'b'"]),
        ("print('x' * 9000)", ["x" * SHOWN]),
    ],
)  # fmt: skip
def test_what_python_itself_prints_is_quoted_by_its_errors(code: str, lines: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, stderr=file, check=False)
    found = last_output(log)
    assert all(line in found for line in lines) and "File" not in found and "^" not in found


def test_a_log_that_is_not_there_says_nothing(tmp_path: Path) -> None:
    assert last_output(tmp_path / "none") == ""
