"""What a user may set about Docker sandboxes, under `sandbox.options` of a recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass

from agentgym.errors import UserError
from agentgym.sandbox import SandboxOptions
from agentgym_sandboxes.options import from_options


def _default_pool_size() -> int:
    return max(1, min(4, os.cpu_count() or 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerConfig:
    """The defaults suit one machine.

    engine: where the engine listens (unix:///path or tcp://host:port); None looks in the usual places.
    image: None is the image that `agentgym sandbox build` makes. runtime: another OCI runtime, as runsc.
    pool_size: warm containers; 0 is one a core, at most 4. slots: calls at a time in each.
    memory_mib: what one call may use; a container may use container_memory_mib.
    max_sessions: at a time, each with a container of its own. spare_sessions: containers that wait for more of
    them, once there was one. session_disk_mib: what a session's files may take, of the container's memory.
    """

    engine: str | None = None
    image: str | None = None
    runtime: str | None = None
    pool_size: int = 0
    slots: int = 4
    memory_mib: int = 512
    container_memory_mib: int = 1024
    cpus: float = 1.0
    max_uses: int = 500
    max_age_s: float = 1800.0
    lease_timeout_s: float = 120.0
    start_timeout_s: float = 60.0
    engine_timeout_s: float = 30.0
    ping_every_s: float = 5.0
    ping_timeout_s: float = 5.0
    reap_every_s: float = 60.0
    max_sessions: int = 16
    spare_sessions: int = 1
    session_disk_mib: int = 256
    mirror: str = "http://deb.debian.org/debian"

    def __post_init__(self) -> None:
        if self.pool_size < 0 or not 1 <= self.slots <= 16:
            raise UserError(
                f"pool_size {self.pool_size}, slots {self.slots}: allowed are pool_size >= 0 and 1 to 16 slots"
            )
        if not 16 <= self.memory_mib <= self.container_memory_mib:
            raise UserError(
                f"memory_mib {self.memory_mib}, container_memory_mib {self.container_memory_mib}: a call needs "
                "at least 16 MiB, and its container at least as much"
            )
        if self.max_sessions < 1 or self.spare_sessions < 0 or not 1 <= self.session_disk_mib <= 4096:
            raise UserError(
                f"max_sessions {self.max_sessions}, spare_sessions {self.spare_sessions}, session_disk_mib "
                f"{self.session_disk_mib}: allowed are at least 1 session, 0 spares, and 1 to 4096 MiB"
            )
        for name in ("cpus", "max_uses", "max_age_s", "lease_timeout_s", "start_timeout_s", "engine_timeout_s",
                     "ping_every_s", "ping_timeout_s", "reap_every_s"):  # fmt: skip
            if getattr(self, name) <= 0:
                raise UserError(f"{name} is {getattr(self, name)}; it must be more than 0")

    @classmethod
    def from_options(cls, options: SandboxOptions) -> DockerConfig:
        return from_options(cls, "docker", options)

    @property
    def num_containers(self) -> int:
        return self.pool_size or _default_pool_size()
