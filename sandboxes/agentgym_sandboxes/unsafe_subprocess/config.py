"""What a user may set about plain subprocesses, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from agentgym_sandboxes.host.options import BOXES, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsafeSubprocessConfig:
    allow_unsafe: bool = False
    """Set it to true to say that the code is trusted; otherwise nothing is run."""
    python: str | None = None
    """The interpreter that runs the code; null is the system's, else ours."""
    slots: int = 0
    """Calls at a time; 0 is two a core."""
    spares: int = 4
    """Processes that are kept ready."""
    memory_mib: int = 512
    """Address space of one process, in MiB."""
    lease_timeout_s: float = 120.0
    """Seconds that a call may wait for a process."""
    start_timeout_s: float = 30.0
    """Seconds that a process may take to start."""

    def __post_init__(self) -> None:
        check_ranges(self, {**BOXES, "memory_mib": (32, inf)})
