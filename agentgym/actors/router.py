"""Which replica gets the next request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar


class Candidate(Protocol):
    """load: requests it has now. has_room: whether it can take another one."""

    load: int

    @property
    def has_room(self) -> bool: ...


C = TypeVar("C", bound=Candidate)


class LeastLoaded:
    """The replica with the fewest requests; equals take turns."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, replicas: Sequence[C]) -> C | None:
        """None when no replica is up with room."""
        self._turn += 1
        count = len(replicas)
        rotated = [replicas[(self._turn + i) % count] for i in range(count)]
        return min((r for r in rotated if r.has_room), key=lambda replica: replica.load, default=None)
