"""How a process ended is known, whoever has reaped it, and so is the hint that memory may have run out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.actors import exits
from agentgym.actors.exits import how_it_ended


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "killed by SIGKILL (out of memory?)"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", "killed by SIGTERM"),
        ("raise SystemExit(3)", "exit code 3"),
    ],
)
@pytest.mark.parametrize("reaped", [False, True])
def test_how_a_process_ended_is_known_when_another_has_reaped_it(end: str, expected: str, reaped: bool) -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", end])
    descriptor = os.pidfd_open(process.pid)
    try:
        if reaped:
            process.wait()
            if exits._kept(descriptor) is None:
                pytest.skip("the kernel, older than 6.15, forgets it")
        os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT) if not reaped else None
        assert how_it_ended(descriptor) == expected
    finally:
        os.close(descriptor)
        process.wait()


@pytest.mark.parametrize("left", [True, False])
def test_where_the_kernel_forgets_it_the_heartbeats_say_whether_it_was_killed(
    left: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exits, "PIDFD_GET_INFO", 0)  # as on an older kernel
    beat = tmp_path / "trainer.0.beat"
    if left:
        beat.touch()
    process = subprocess.Popen(["sleep", "600"])
    descriptor = os.pidfd_open(process.pid)
    process.send_signal(signal.SIGKILL)
    process.wait()
    try:
        assert ("out of memory?" in how_it_ended(descriptor, beat)) == left
    finally:
        os.close(descriptor)
