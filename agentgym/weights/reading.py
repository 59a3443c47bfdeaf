"""Reading stored weights by their path alone, in a process that has no store: that of vLLM's worker."""

from __future__ import annotations

from pathlib import Path

from agentgym.models.safetensors import WeightFile
from agentgym.weights.store import GPU_SUFFIX, StoredWeights


def open_weights(path: Path) -> StoredWeights:
    """What another process of this host stored there. Raises FileNotFoundError when the version was deleted."""
    if path.suffix == GPU_SUFFIX:
        from agentgym.weights.cuda_ipc import GpuWeights

        return GpuWeights(path)
    return WeightFile(path)
