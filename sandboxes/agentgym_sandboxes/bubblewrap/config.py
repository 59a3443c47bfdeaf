"""What a user may set about bubblewrap sandboxes, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from agentgym_sandboxes.host.options import BOXES, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapConfig:
    """The defaults suit one machine."""

    bwrap: str | None = None
    """The command bwrap; null looks in PATH."""
    python: str | None = None
    """The interpreter that runs the code; null is the system's, else ours."""
    cgroup: str | None = None
    """The control group to make others in, as `/agentgym`, relative to where they are mounted; null is our own."""
    slots: int = 0
    """Calls at a time; 0 is two a core."""
    spares: int = 4
    """Sandboxes that are kept ready."""
    memory_mib: int = 512
    """Memory of one call, in MiB; its files (work_mib, tmp_mib) come on top."""
    work_mib: int = 64
    """Space of a call's work folder, in MiB."""
    tmp_mib: int = 16
    """Space of a call's temporary folder, in MiB."""
    lease_timeout_s: float = 120.0
    """Seconds that a call may wait for a sandbox."""
    start_timeout_s: float = 30.0
    """Seconds that a sandbox may take to start."""

    def __post_init__(self) -> None:
        ranges = {"memory_mib": (32, inf), "work_mib": (1, inf), "tmp_mib": (1, inf)}
        check_ranges(self, {**BOXES, **ranges})
