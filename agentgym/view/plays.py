"""Environments played by hand: to come."""

from __future__ import annotations

from typing import Any


class Plays:
    def routes(self, changing: Any) -> list[Any]:
        return []

    async def close(self) -> None: ...
