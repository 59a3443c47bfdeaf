"""A service's limits and deadlines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    start_timeout_s: float = 300.0
    """Seconds that a replica may take to start."""
    stop_timeout_s: float = 10.0
    """Seconds that a replica may take to end before it is killed."""
    request_timeout_s: float = 600.0
    """Seconds of one request."""
    probe_every_s: float = 2.0
    """Seconds between checks of whether a replica still answers."""
    probe_timeout_s: float = 5.0
    """Seconds within which it must answer such a check."""
    max_missed_probes: int = 3
    """Checks in a row that a replica may miss before it counts as dead."""
    max_respawns: int = 5
    """How often one replica may die in a row until it is given up."""
    stable_after_s: float = 60.0
    """Seconds after which a replica that lives starts a new count of deaths."""
    backoff_s: float = 0.2
    """Seconds before a dead replica is started again; doubled with each death in a row."""
    max_backoff_s: float = 10.0
    """The longest such wait, in seconds."""
    max_attempts: int = 3
    """Replicas that one request may lose before it fails, so that a request that kills its replica cannot kill them
    all."""
    max_waiting: int = 4096
    """Requests that may wait at one replica; further ones wait at the caller."""
    min_replicas: int | None = None
    """Replicas that must be able to do the work, or the service fails; None is as many as it starts with."""

    def __post_init__(self) -> None:
        counts = (self.max_missed_probes, self.max_attempts, self.max_waiting)
        if min(*counts, 1 if self.min_replicas is None else self.min_replicas) < 1 or self.max_respawns < 0:
            raise ValueError(
                "service: max_missed_probes, max_attempts, max_waiting and min_replicas must be at least 1, "
                "max_respawns at least 0"
            )
