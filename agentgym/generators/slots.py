"""Which requests an engine works on: how many, by the room for keys and values, and whose turn is next."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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


class AdaptiveSlots:
    """Slots of requests, as many as there is room for: `take` one, then `give_back`.

    Additive increase, multiplicative decrease, as in TCP: an engine that ran out of room for keys and values and threw
    a sequence's away, which it must compute again, gets fewer; with room, each round of completions adds some.

    join_s: seconds for which those that begin beside others hold each of these up, however many begin; 0: nothing, and
    they begin at once. Otherwise they wait for each other, until those for whom there is a place have waited, all
    together, as long as they would hold up the others, all together. This is how D. R. Dooly, S. A. Goldman and S. D.
    Scott, "On-line analysis of the TCP acknowledgment delay problem", JACM 48(2), 2001, delay acknowledgments: there,
    delays and acknowledgments then cost at most twice what they would if all that is to come were known.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken_now = 0
        self.num_cuts = 0
        self.kv_share = 0.0
        self.join_s = 0.0
        self._limit = float(most)
        self._line: Line[asyncio.Future[None]] = Line()
        self._tickets = 0
        self._waited_s = 0.0  # of those that wait though there is a place, since the last ones began
        self._counted_s = 0.0  # until when, by the event loop's clock
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        return int(self._limit)

    def saw(self, *, kv_share: float, num_preempted: int) -> None:
        """Records a step of the engine. kv_share: of the room that is in use. num_preempted: sequences it threw out.

        Those that it threw out while there was room, as it does with all of them for new weights, count for nothing.
        """
        was_full = max(self.kv_share, kv_share) >= ROOM
        self.kv_share = kv_share
        if num_preempted and was_full and self.taken_now <= self.limit:  # else the last cut has not had its effect yet
            self._limit = max(1.0, FEWER * self.taken_now)
            self.num_cuts += 1

    async def take(self, *, continues: bool) -> None:
        if self.taken_now < self.limit and not len(self._line) and not (self.join_s and self.taken_now):
            self.taken_now += 1
            return
        self._tickets += 1
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        ticket = self._tickets
        self._count()
        self._line.put(ticket, turn, continues=continues)
        self._admit()
        try:
            await turn
        except asyncio.CancelledError:
            self._count()
            if turn.cancelled():
                self._line.remove(ticket)
            else:
                self.taken_now -= 1
            self._admit()
            raise

    @asynccontextmanager
    async def held(self, *, continues: bool) -> AsyncIterator[None]:
        """One is taken, for as long as this lasts."""
        await self.take(continues=continues)
        try:
            yield
        finally:
            self.give_back()

    def give_back(self) -> None:
        """Returns the slot after a completion."""
        self._count()
        if len(self._line) and self.kv_share < ROOM:
            self._limit = min(float(self.most), self._limit + max(1.0, self.most / ROUNDS) / self._limit)
        self.taken_now -= 1
        self._admit()

    @property
    def _could_begin(self) -> int:
        """How many wait though there is a place."""
        return max(0, min(len(self._line), self.limit - self.taken_now))

    def _count(self) -> None:
        """Counts, before any change, the waiting time since the last one."""
        now_s = asyncio.get_running_loop().time()
        self._waited_s += self._could_begin * (now_s - self._counted_s)
        self._counted_s = now_s

    def _admit(self) -> None:
        """Now, or when those that could begin have waited long enough."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._could_begin:
            return
        missing_s = self.taken_now * self.join_s - self._waited_s
        if missing_s > 0:
            self._timer = asyncio.get_running_loop().call_later(missing_s / self._could_begin, self._begin)
        else:
            self._begin()

    def _begin(self) -> None:
        self._count()
        self._waited_s = 0.0
        while self._could_begin:
            _, turn = self._line.pop()
            if not turn.done():
                self.taken_now += 1
                turn.set_result(None)
