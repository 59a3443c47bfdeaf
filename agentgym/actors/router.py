"""Who gets a service's next request: the least loaded replica with room, or the first to have room again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Generic, Protocol, TypeVar


class Chosen(Protocol):
    """A replica, as it is chosen. up: it can be called. has_room: it may be given another request."""

    up: bool
    load: int

    @property
    def has_room(self) -> bool: ...


P = TypeVar("P", bound=Chosen)


class Router(Generic[P]):
    """What a request costs here depends neither on the number of replicas nor on the number of requests that wait.

    Replicas with room are listed by load; equals take turns. Requests wait in the order in which they came, and a
    slot that becomes free wakes the first of them alone.
    """

    def __init__(self) -> None:
        self._open: dict[int, OrderedDict[P, None]] = {}  # load -> replicas with room
        self._listed: dict[P, int] = {}  # replica -> the load under which it is listed
        self._line: OrderedDict[asyncio.Future[P], None] = OrderedDict()
        self._failure: BaseException | None = None

    @property
    def num_waiting(self) -> int:
        return len(self._line)

    async def take(self, preferred: P | None = None) -> P:
        """A slot of a replica, of the preferred one if it has room; `give_back` it. Raises what `fail` was given."""
        while self._failure is None:
            if preferred is not None and preferred.has_room:
                return self._occupied(preferred)
            if self._open:
                return self._occupied(next(iter(self._open[min(self._open)])))
            replica = await self._turn()
            if replica.up:  # it may have died since it was handed over
                return replica
            self.give_back(replica)
        raise self._failure

    def give_back(self, replica: P) -> None:
        replica.load -= 1
        self.changed(replica)

    def changed(self, replica: P) -> None:
        """List the replica as it is now: call this after it came up, went down, or was told to leave or stay."""
        self._list(replica)
        while self._line and replica.has_room:
            turn, _ = self._line.popitem(last=False)
            if not turn.done():  # cancelled: its task has not run since
                turn.set_result(self._occupied(replica))

    def fail(self, error: BaseException) -> None:
        """Raise the error for all requests that wait, and for later ones."""
        self._failure = error
        while self._line:
            turn, _ = self._line.popitem(last=False)
            if not turn.done():
                turn.set_exception(error)

    def _occupied(self, replica: P) -> P:
        replica.load += 1
        self._list(replica)
        return replica

    async def _turn(self) -> P:
        turn: asyncio.Future[P] = asyncio.get_running_loop().create_future()
        self._line[turn] = None
        try:
            return await turn
        except asyncio.CancelledError:
            self._line.pop(turn, None)
            if not turn.cancelled() and turn.exception() is None:  # it was handed over in this turn of the event loop
                self.give_back(turn.result())
            raise

    def _list(self, replica: P) -> None:
        before = self._listed.pop(replica, None)
        if before is not None:
            del self._open[before][replica]
            if not self._open[before]:
                del self._open[before]
        if replica.has_room:
            self._open.setdefault(replica.load, OrderedDict())[replica] = None
            self._listed[replica] = replica.load
