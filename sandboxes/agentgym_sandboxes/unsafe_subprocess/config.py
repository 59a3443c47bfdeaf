"""What a user may set about plain subprocesses, under `sandbox.options` of a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.host.options import BOXES, check_ranges, from_options


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsafeSubprocessConfig:
    """allow_unsafe: must be set to true, or nothing is run.

    python: the interpreter that runs the code; None is the system's, else ours. slots: calls at a time; 0 is two
    a core. spares: processes that are ready. memory_mib: the address space that one process may use.
    """

    allow_unsafe: bool = False
    python: str | None = None
    slots: int = 0
    spares: int = 4
    memory_mib: int = 512
    lease_timeout_s: float = 120.0
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        check_ranges(self, {**BOXES, "memory_mib": (32, inf)})

    @classmethod
    def from_options(cls, options: SandboxOptions) -> UnsafeSubprocessConfig:
        return from_options(cls, "unsafe_subprocess", options)
