"""A program that has used Monarch ends with its code, and with all that Python does at exit but one thing."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, sys, threading, time
from agentgym.commands.leaving import leave

class Torn:
    def __del__(self):
        print("taken apart")

torn = Torn()
atexit.register(print, "at exit")
if sys.argv[1] == "monarch":
    sys.modules["monarch"] = sys
threading.Thread(target=lambda: (time.sleep(0.3), print("a thread's end"))).start()
print("unflushed", end=" ")
leave(7)
"""


@pytest.mark.parametrize(("used", "torn"), [("monarch", []), ("nothing", ["taken apart"])])
def test_everything_is_done_but_the_interpreter_stays_whole(used: str, torn: list[str]) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM, used], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines() == ["unflushed a thread's end", "at exit", *torn]
