"""How vLLM starts the workers of its engine on a CPU."""

from __future__ import annotations

import os

from vllm.v1.executor.multiproc_executor import MultiprocExecutor

from agentgym.generators.vllm.settings import START_METHOD


class ForkingExecutor(MultiprocExecutor):  # type: ignore[misc]  # vllm has no types here
    """Workers are copies of vLLM's own process, vLLM's default: with `spawn` each imports torch and vLLM once more.

    It is made in vLLM's process before that has threads. Ours has Monarch's, so vLLM's process itself is spawned.
    """

    def _init_executor(self) -> None:
        os.environ[START_METHOD] = "fork"
        super()._init_executor()
