"""Which requests an engine works on: how many, by the room for keys and values, and whose turn is next."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

OVERTAKEN_S = 60.0  # a request that waits this long goes before all others
FEWER = 0.8  # of the sequences, when keys and values of one had to go
ROOM = 0.9  # of the room for keys and values in use: with more, no sequence is added
ROUNDS = 32  # of completions, in which one place becomes the most


class Line(Generic[T]):
    """Requests that wait. A conversation's next turn goes before a new conversation, since the cache may still have
    its context: so the number of conversations that are under way follows the room for their contexts.
    """

    def __init__(self) -> None:
        self._next_turns: OrderedDict[int, tuple[float, T]] = OrderedDict()  # by ticket, with when it came
        self._new: OrderedDict[int, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._next_turns) + len(self._new)

    def put(self, ticket: int, item: T, *, continues: bool) -> None:
        (self._next_turns if continues else self._new)[ticket] = time.monotonic(), item

    def pop(self) -> tuple[int, T]:
        """Raises KeyError when nobody waits."""
        late_s = time.monotonic() - OVERTAKEN_S
        is_late = self._new and next(iter(self._new.values()))[0] < late_s
        line = self._new if is_late or not self._next_turns else self._next_turns
        ticket, (_, item) = line.popitem(last=False)
        return ticket, item

    def remove(self, ticket: int) -> bool:
        """False for one that does not wait."""
        return any(line.pop(ticket, None) is not None for line in (self._next_turns, self._new))


class Places:
    """As many as there is room for: `take` one, then `give_back`.

    Additive increase, multiplicative decrease, as in TCP: an engine that ran out of room for keys and values and threw
    a sequence's away, which it must compute again, gets fewer; with room, each round of completions adds some.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken_now = 0
        self.num_cuts = 0
        self.kv_share = 0.0
        self._limit = float(most)
        self._line: Line[asyncio.Future[None]] = Line()
        self._tickets = 0

    @property
    def limit(self) -> int:
        return int(self._limit)

    def saw(self, *, kv_share: float, num_preempted: int) -> None:
        """After a step of the engine. kv_share: of the room that is in use. num_preempted: sequences it threw out.

        Those that it threw out while there was room, as it does with all of them for new weights, count for nothing.
        """
        was_full = max(self.kv_share, kv_share) >= ROOM
        self.kv_share = kv_share
        if num_preempted and was_full and self.taken_now <= self.limit:  # else the last cut has not had its effect yet
            self._limit = max(1.0, FEWER * self.taken_now)
            self.num_cuts += 1

    async def take(self, *, continues: bool) -> None:
        if self.taken_now < self.limit and not len(self._line):
            self.taken_now += 1
            return
        self._tickets += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self._tickets
        self._line.put(ticket, turn, continues=continues)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._line.remove(ticket)
            else:
                self._give_up()
            raise

    def give_back(self) -> None:
        """After a completion."""
        if len(self._line) and self.kv_share < ROOM:
            self._limit = min(float(self.most), self._limit + max(1.0, self.most / ROUNDS) / self._limit)
        self._give_up()

    def _give_up(self) -> None:
        self.taken_now -= 1
        while len(self._line) and self.taken_now < self.limit:
            _, turn = self._line.pop()
            if not turn.cancelled():
                self.taken_now += 1
                turn.set_result(None)
