"""A port on the loopback interface that leads to one server of the host, whatever goes through it."""

from __future__ import annotations

from .frames import OnFrame
from .proxy import operations
from .reactor import Reactor


def register(reactor: Reactor) -> dict[str, OnFrame]:
    """The operations `forward.*`."""
    return operations(reactor, "forward")
