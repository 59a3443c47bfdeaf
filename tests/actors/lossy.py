"""A weight store whose versions can be lost for a while, as those in a trainer's memory; other processes import it."""

from __future__ import annotations

from pathlib import Path

from agentgym.models.safetensors import WeightFile
from agentgym.weights.shared_memory import SharedMemoryStore


class LossyStore(SharedMemoryStore):
    """While the file `lost` is there, no version can be read, though it is listed."""

    @property
    def lost(self) -> Path:
        return self.folder.parent / "lost"

    async def get(self, version: int) -> WeightFile:
        if self.lost.exists():
            raise KeyError(f"no weights of version {version}; the store holds []")
        return await super().get(version)
