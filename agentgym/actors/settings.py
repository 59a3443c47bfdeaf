"""A service's limits and deadlines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """max_respawns: deaths of one replica in a row; one that lived for stable_after_s starts a new count.

    max_attempts: replicas that one request may lose before it fails, so that a request that kills its
    replica can't kill them all. max_waiting: requests at one replica; more wait at the caller. min_replicas: of those
    that can do the work, with fewer of which the service fails; None is as many as it starts with.
    """

    start_timeout_s: float = 300.0
    stop_timeout_s: float = 10.0
    request_timeout_s: float = 600.0
    probe_every_s: float = 2.0
    probe_timeout_s: float = 5.0
    max_missed_probes: int = 3
    max_respawns: int = 5
    stable_after_s: float = 60.0
    backoff_s: float = 0.2
    max_backoff_s: float = 10.0
    max_attempts: int = 3
    max_waiting: int = 4096
    min_replicas: int | None = None

    def __post_init__(self) -> None:
        counts = (self.max_missed_probes, self.max_attempts, self.max_waiting)
        if min(*counts, 1 if self.min_replicas is None else self.min_replicas) < 1 or self.max_respawns < 0:
            raise ValueError(
                "service: max_missed_probes, max_attempts, max_waiting and min_replicas must be at least 1, "
                "max_respawns at least 0"
            )
