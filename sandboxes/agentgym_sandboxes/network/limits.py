"""What the network of one session may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    """max_bytes: in both directions together."""

    max_connections: int = 32
    max_bytes: int = 1 << 30
    head_timeout_s: float = 15.0
    connect_timeout_s: float = 15.0
    idle_timeout_s: float = 120.0
