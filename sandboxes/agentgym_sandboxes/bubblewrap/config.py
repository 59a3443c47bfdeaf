"""What a user may set about bubblewrap sandboxes, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.host.options import BOXES, check_ranges, from_options


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapConfig:
    """The defaults suit one machine.

    bwrap: its command; None looks in PATH. python: the interpreter that runs the code; None is the system's,
    else ours. cgroup: the control group to make others in, as `/agentgym`, relative to where they are mounted;
    None is the one we are in. slots: calls at a time; 0 is two a core. spares: sandboxes that are ready.
    memory_mib: what one call may use; its files (work_mib, tmp_mib) come on top.
    """

    bwrap: str | None = None
    python: str | None = None
    cgroup: str | None = None
    slots: int = 0
    spares: int = 4
    memory_mib: int = 512
    work_mib: int = 64
    tmp_mib: int = 16
    lease_timeout_s: float = 120.0
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        ranges = {"memory_mib": (32, inf), "work_mib": (1, inf), "tmp_mib": (1, inf)}
        check_ranges(self, {**BOXES, **ranges})

    @classmethod
    def from_options(cls, options: SandboxOptions) -> BubblewrapConfig:
        return from_options(cls, "bubblewrap", options)
