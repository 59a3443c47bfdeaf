"""vLLM on a CPU, with steps as long as a GPU's: for what depends on when requests join others, and not on the model.

`in_vllm(join_s)` has vLLM's process sleep in each step in which requests begin beside others, as a GPU's step is longer
that is launched piece by piece. It holds for engines that are started afterwards.
"""

from __future__ import annotations

import functools
import os
import time
from pathlib import Path
from typing import Any

from agentgym.generators.vllm import settings
from agentgym.generators.vllm.worker import WorkerExtension as WorkerExtension

SECONDS = "AGENTGYM_BENCHMARK_JOIN_S"


def in_vllm(join_s: float) -> None:
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {SECONDS: str(join_s), "PYTHONPATH": os.pathsep.join(paths)}
    settings.WORKER_EXTENSION = f"{__name__}.WorkerExtension"


def _slow_down(runner: Any, join_s: float) -> None:
    execute = runner.execute_model

    @functools.wraps(execute)
    def slow(self: Any, scheduled: Any, *more: Any, **named: Any) -> Any:
        if scheduled.scheduled_new_reqs and scheduled.scheduled_cached_reqs.num_reqs:
            time.sleep(join_s)
        return execute(self, scheduled, *more, **named)

    runner.execute_model = slow


if SECONDS in os.environ:  # in vLLM's own process, which imports this for the extension
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    _slow_down(GPUModelRunner, float(os.environ[SECONDS]))
