"""A process of vLLM's ends with the one that started it, from when it begins to take memory."""

from __future__ import annotations

import os
import subprocess
import sys

from agentgym.generators.vllm.settings import STARTED_BY

WORKER = "import agentgym.generators.vllm.worker, time; print('loaded', flush=True); time.sleep(600)"


def worker(started_by: int) -> subprocess.Popen[str]:
    environment = {**os.environ, STARTED_BY: str(started_by)}
    return subprocess.Popen([sys.executable, "-c", WORKER], env=environment, stdout=subprocess.PIPE, text=True)


def test_it_ends_when_the_process_that_started_it_is_killed() -> None:
    with subprocess.Popen(["sleep", "600"]) as parent, worker(parent.pid) as started:
        assert started.stdout is not None and started.stdout.readline() == "loaded\n"
        assert started.poll() is None
        parent.kill()
        assert started.wait(timeout=30) == 1


def test_it_ends_at_once_where_that_process_is_gone_already() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with worker(gone.pid) as started:
        assert started.stdout is not None and started.stdout.read() == ""
        assert started.wait(timeout=30) == 1
