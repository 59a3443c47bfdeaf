"""What a user may set about the monty sandbox, under `sandbox.options` of a recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.host.options import from_options


@dataclass(frozen=True, slots=True, kw_only=True)
class MontyConfig:
    """workers: calls at a time, each in an interpreter process of its own; 0 is one a core, at most 8.

    memory_mib: what one call may use. max_recursion: how deep its calls may nest.
    """

    workers: int = 0
    memory_mib: int = 512
    max_recursion: int = 1000

    def __post_init__(self) -> None:
        if self.workers < 0 or self.memory_mib < 1 or not 1 <= self.max_recursion <= 10_000:
            raise UserError(
                f"workers {self.workers}, memory_mib {self.memory_mib}, max_recursion {self.max_recursion}: allowed "
                "are workers >= 0, memory_mib >= 1 and max_recursion from 1 to 10000"
            )

    @classmethod
    def from_options(cls, options: SandboxOptions) -> MontyConfig:
        return from_options(cls, "monty", options)

    @property
    def num_workers(self) -> int:
        return self.workers or max(1, min(8, os.cpu_count() or 1))
