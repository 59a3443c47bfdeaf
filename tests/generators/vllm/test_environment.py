"""What vLLM reads from the environment, which is set before it is imported."""

from __future__ import annotations

import os

import pytest

from agentgym.generators.config import GeneratorConfig
from agentgym.generators.vllm.settings import BATCH_INVARIANT, STARTED_BY, set_environment

OTHERS = ("VLLM_WORKER_MULTIPROC_METHOD", "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "VLLM_USE_FLASHINFER_SAMPLER")


def test_batch_invariance_is_switched_on_for_vllm_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OTHERS, "VLLM_LOGGING_LEVEL", STARTED_BY, BATCH_INVARIANT):
        monkeypatch.setenv(name, "0")  # so that the test's end restores it
    set_environment(GeneratorConfig())
    assert os.environ[BATCH_INVARIANT] == "0", "what the user has set stays"
    set_environment(GeneratorConfig(batch_invariant=True))
    assert os.environ[BATCH_INVARIANT] == "1"
