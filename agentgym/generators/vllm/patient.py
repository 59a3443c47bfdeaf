"""vLLM's worker where a trainer may have the same GPU."""

from __future__ import annotations

from vllm.v1.worker.gpu_worker import Worker

from agentgym.actors.gpu_turn import wait_for_gpu


class PatientWorker(Worker):  # type: ignore[misc]
    """Looks at the GPU's memory when no trainer takes some of it: what is free then is what stays free."""

    def init_device(self) -> None:
        wait_for_gpu(self.local_rank)
        super().init_device()
