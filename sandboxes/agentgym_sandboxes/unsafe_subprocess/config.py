"""What a user may set about plain subprocesses, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.host.options import from_options


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsafeSubprocessConfig:
    """allow_unsafe: must be set to true, or nothing is run.

    python: the interpreter that runs the code; None is the system's, else ours. slots: calls at a time; 0 is two
    a core. spares: processes that stand ready. memory_mib: the address space that one process may use.
    """

    allow_unsafe: bool = False
    python: str | None = None
    slots: int = 0
    spares: int = 4
    memory_mib: int = 512
    lease_timeout_s: float = 120.0
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 0 <= self.slots <= 256 or not 0 <= self.spares <= 256 or self.memory_mib < 32:
            raise UserError(
                f"slots {self.slots}, spares {self.spares}, memory_mib {self.memory_mib}: allowed are 0 to 256 slots, "
                "0 to 256 spares and at least 32 MiB"
            )
        if self.lease_timeout_s <= 0 or self.start_timeout_s <= 0:
            raise UserError(
                f"lease_timeout_s {self.lease_timeout_s}, start_timeout_s {self.start_timeout_s}: each must be "
                "more than 0"
            )

    @classmethod
    def from_options(cls, options: SandboxOptions) -> UnsafeSubprocessConfig:
        return from_options(cls, "unsafe_subprocess", options)
