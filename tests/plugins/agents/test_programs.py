"""What is killed with an agent has ended when the call returns: also what has just begun, and what is slow to end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentgym.programs import _is_between, kill_all, tagged

LARGE = "import os, time; os.setsid(); held = bytearray(60_000_000); time.sleep(99)"  # its memory takes time to free
BOTH = 20  # of each kind; without a second look half of the large ones were still ending


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't tell the environment of a process")
def test_nothing_lives_on_when_the_call_returns(is_gone) -> None:  # type: ignore[no-untyped-def]
    for age in (0.0, 0.05) * BOTH:
        tag, environ = tagged({})
        with subprocess.Popen([sys.executable, "-S", "-c", LARGE], env=environ) as child:
            time.sleep(age)
            kill_all(None, tag)
            gone = is_gone(child.pid)
            child.kill()
        assert gone


@pytest.mark.skipif(sys.platform != "linux", reason="other systems don't tell the environment of a process")
def test_others_that_have_no_environment_hold_nothing_up() -> None:
    with subprocess.Popen(["sleep", "99"], env={}, start_new_session=True) as other:
        while b"sleep" not in Path(f"/proc/{other.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        try:
            assert not _is_between(Path(f"/proc/{other.pid}")), "it would be looked at again for KILL_S"
            kill_all(None, "nobody's")
            assert other.poll() is None
        finally:
            other.kill()
