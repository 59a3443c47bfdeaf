"""vLLM's worker on a CPU with weights as a checkpoint has them, as on a GPU; loaded in vLLM's own process."""

from __future__ import annotations

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

from agentgym.generators.vllm.worker import WorkerExtension, as_in_checkpoint


def leave_unpacked(method: object, layer: torch.nn.Module) -> None:
    """In place of `process_weights_after_loading`, which packs on a CPU and does nothing on a GPU."""
    layer.cpu_linear = torch.nn.functional.linear


UnquantizedLinearMethod.process_weights_after_loading = leave_unpacked
UnquantizedEmbeddingMethod.process_weights_after_loading = leave_unpacked


class InPlaceWorker(WorkerExtension):
    def agentgym_loads_in_place(self) -> bool:
        return as_in_checkpoint(self.model_runner.get_model())

    def agentgym_load_weights(self, path: str, **kwargs: bool) -> None:
        self.model_runner.reload_weights = refuse
        model = self.model_runner.get_model()
        load = type(model).load_weights
        self.copied: list[str] = []

        def watched(weights):
            return load(model, (self.copied.append(name) or (name, weight) for name, weight in weights))

        model.load_weights = watched
        super().agentgym_load_weights(path, **kwargs)

    def names_copied(self) -> list[str]:
        """By the last update."""
        return self.copied


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("the slow way was taken")
