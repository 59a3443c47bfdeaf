"""Reading stored weights by their path, also in a process that has no store: that of vLLM's worker."""

from __future__ import annotations

from pathlib import Path

import torch

from agentgym.errors import InfraError
from agentgym.models.safetensors import WeightFile
from agentgym.weights.store import GPU_SUFFIX, SENT_SUFFIX, StoredWeights


def open_weights(path: Path) -> StoredWeights:
    """What another process of this host stored there. Raises FileNotFoundError when the version was deleted."""
    if path.suffix == GPU_SUFFIX:
        from agentgym.weights.cuda_ipc import GpuWeights

        return GpuWeights(path)
    if path.suffix == SENT_SUFFIX:
        from agentgym.weights.nccl import SentWeights

        return SentWeights(path)
    return WeightFile(path)


def check_kept(path: Path, device: torch.device) -> None:
    """Once all is copied to the device: raise InfraError where the version was deleted meanwhile.

    Its memory on a GPU may then hold a part of another version.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    if not path.exists():
        raise InfraError(f"{path} was deleted while it was loaded; the weights may be of two versions")
