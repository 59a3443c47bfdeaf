"""What a user may set about the monty sandbox, under `sandbox.options` of a recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import inf

from agentgym_sandboxes.host.options import check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class MontyConfig:
    workers: int = 0
    """Calls at a time, each in an interpreter process of its own; 0 is one a core, at most 8."""
    memory_mib: int = 512
    """Memory of one call, in MiB."""
    max_recursion: int = 1000
    """How deep the calls of its functions may nest."""
    allow_root: bool = False
    """Where agentgym runs as root, let its processes keep root's rights instead of a uid and a filter of their own."""

    def __post_init__(self) -> None:
        check_ranges(self, {"workers": (0, inf), "memory_mib": (1, inf), "max_recursion": (1, 10_000)})

    @property
    def num_workers(self) -> int:
        return self.workers or max(1, min(8, os.cpu_count() or 1))
