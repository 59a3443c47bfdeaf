"""A process group without processes."""

from __future__ import annotations


class Group:
    """Keeps what it is called for."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def start(self, *, timeout_s: float) -> None:
        self.calls.append("start")

    def give_up(self, reason: str) -> None:
        self.calls.append("give_up")

    async def stop(self) -> None:
        self.calls.append("stop")
