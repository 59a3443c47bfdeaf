"""What a user may set about bubblewrap sandboxes, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.host.options import from_options


@dataclass(frozen=True, slots=True, kw_only=True)
class BubblewrapConfig:
    """The defaults suit one machine.

    bwrap: its command; None looks in PATH. python: the interpreter that runs the code; None is the system's,
    else ours. cgroup: the control group to make others in, as `/agentgym`, relative to where they are mounted;
    None is the one we are in. slots: calls at a time; 0 is two a core. spares: sandboxes that stand ready.
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
        if not 0 <= self.slots <= 256 or not 0 <= self.spares <= 256:
            raise UserError(f"slots {self.slots}, spares {self.spares}: each may be 0 to 256")
        if self.memory_mib < 32 or self.work_mib < 1 or self.tmp_mib < 1:
            raise UserError(
                f"memory_mib {self.memory_mib}, work_mib {self.work_mib}, tmp_mib {self.tmp_mib}: a call needs at "
                "least 32 MiB, and at least 1 MiB for each of its folders"
            )
        if self.lease_timeout_s <= 0 or self.start_timeout_s <= 0:
            raise UserError(
                f"lease_timeout_s {self.lease_timeout_s}, start_timeout_s {self.start_timeout_s}: each must be "
                "more than 0"
            )

    @classmethod
    def from_options(cls, options: SandboxOptions) -> BubblewrapConfig:
        return from_options(cls, "bubblewrap", options)
