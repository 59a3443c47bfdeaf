"""Parts of a trainer that end their own process where a file asks for it; other processes import them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from agentgym.rl.losses import TokenLoss, TrainedTokens
from agentgym.rl.losses.grpo import Grpo
from agentgym.weights.shared_memory import SharedMemoryStore


def die_if_asked(file: Path) -> None:
    """On rank 1 where there is one."""
    if int(os.environ.get("RANK", "0")) == int(os.environ.get("WORLD_SIZE", "1")) - 1 and file.exists():
        file.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlyLoss(Grpo):
    """Dies inside a step, between forward and backward."""

    folder: str = ""

    def __call__(self, tokens: TrainedTokens, version: int) -> TokenLoss:
        die_if_asked(Path(self.folder) / "step")
        return super(DeadlyLoss, self).__call__(tokens, version)


class DeadlyStore(SharedMemoryStore):
    """Dies in a publication, when a part of it is written."""

    async def put(self, version: int, weights: Iterable[tuple[str, Tensor]]) -> None:
        def some() -> Iterable[tuple[str, Tensor]]:
            for number, entry in enumerate(weights):
                if number == 3:
                    die_if_asked(self.folder.parent / "publish")
                yield entry

        await super().put(version, some())
