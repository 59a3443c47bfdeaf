"""A port on the loopback interface through which programs, whose standard streams it carries, reach the host."""

from __future__ import annotations

from .frames import OnFrame
from .proxy import operations
from .reactor import Reactor


def register(reactor: Reactor) -> dict[str, OnFrame]:
    """The operations `talk.*`."""
    return operations(reactor, "talk")
