"""Which sequence's tokens are in which cache row, and which of them a new sequence can reuse.

Running sequences use the first rows, so that a decode step reads the cache without copying. A row whose
sequence has ended keeps its tokens until the row is needed: the next turn of the same episode continues there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from agentgym.generators.native.cache import KVCache

_SLACK = 4  # idle rows among the running ones that are not worth a move


class RowTable:
    """One entry per cache row; arrays, since the decode loop handles all rows at once.

    tokens: [rows, max_len]. length: tokens known. computed: how many of them have keys and values.
    """

    def __init__(self, cache: KVCache) -> None:
        rows = cache.rows
        self._cache = cache
        self._clock = 0
        self.evicted = 0  # tokens of contexts that made room for others
        self.tokens = np.zeros((rows, cache.max_len), np.int64)
        self.length = np.zeros(rows, np.int64)
        self.computed = np.zeros(rows, np.int64)
        self.running = np.zeros(rows, bool)
        self.last_used = np.zeros(rows, np.int64)
        # of the sequence that runs there
        self.tickets = np.full(rows, -1, np.int64)
        self.logprobs = np.zeros((rows, cache.max_len), np.float32)
        self.prompt_length = np.zeros(rows, np.int64)
        self.max_length = np.zeros(rows, np.int64)
        self.time_s = np.full(rows, np.inf)  # from the first token on
        self.submitted_s = np.zeros(rows)  # when, by the monotonic clock
        self.began_s = np.zeros(rows)  # the first token
        self.stop_ids = np.full((rows, 1), -1, np.int64)
        self.seeds = np.zeros(rows, np.uint64)
        self.temperature = np.ones(rows, np.float32)
        self.top_k = np.zeros(rows, np.int64)
        self.top_p = np.ones(rows, np.float32)

    @property
    def num_running(self) -> int:
        return int(np.count_nonzero(self.running))

    @property
    def share(self) -> float:
        """The share of the cache that holds contexts: of running sequences, and of others that may be continued."""
        return float(self.computed.sum()) / self.tokens.size

    @property
    def span(self) -> int:
        """Rows up to the last running one."""
        used = np.flatnonzero(self.running)
        return int(used[-1]) + 1 if used.size else 0

    def row_of(self, ticket: int) -> int:
        """The running row of a ticket. Raises KeyError when it is not running."""
        found = np.flatnonzero(self.running & (self.tickets == ticket))
        if not found.size:
            raise KeyError(ticket)
        return int(found[0])

    def take(self, prompt_ids: Sequence[int]) -> int:
        """A row for a new sequence, with its tokens in place; computed: how many of the old ones are reused."""
        prompt = np.asarray(prompt_ids, np.int64)
        hole = int(np.flatnonzero(~self.running)[0])
        idle = np.flatnonzero(~self.running & (self.computed > 0))
        shared = self.shared_prefix(prompt, idle)
        whole = shared == self.computed[idle]
        if whole.any():  # a continuation: the old row is reused whole
            best = int(np.argmax(np.where(whole, shared, 0)))
            source, kept = int(idle[best]), min(int(shared[best]), len(prompt) - 1)
            self._swap(source, hole)
        else:
            kept = 0
            oldest = int(np.argmin(np.where(self.running, np.iinfo(np.int64).max, self.last_used)))
            self._swap(oldest, hole)
            self.evicted += int(self.computed[hole])
        self.tokens[hole, : len(prompt)] = prompt
        self.length[hole] = self.prompt_length[hole] = len(prompt)
        self.computed[hole] = kept
        self.running[hole] = True
        return hole

    def free(self, row: int) -> None:
        self._clock += 1
        self.running[row] = False
        self.tickets[row] = -1
        self.length[row] = self.computed[row]
        self.last_used[row] = self._clock
        self.temperature[row], self.top_k[row], self.top_p[row] = 1.0, 0, 1.0

    def compact(self) -> None:
        """Move the last running rows into idle ones before them, once there are many of those."""
        while self.span > self.num_running * 1.25 + _SLACK:
            self._swap(self.span - 1, int(np.flatnonzero(~self.running)[0]))

    def forget_computed(self) -> None:
        """Keys and values of old weights are invalid."""
        self.computed[:] = 0

    def shared_prefix(
        self, prompt: npt.NDArray[np.int64], rows: npt.NDArray[np.int64], *, known: bool = False
    ) -> npt.NDArray[np.int64]:
        """The number of a prompt's first tokens that each row has computed (known: or only knows)."""
        equal = self.tokens[rows, : len(prompt)] == prompt
        common = np.where(equal.all(axis=1), len(prompt), equal.argmin(axis=1))
        return np.minimum(common, (self.length if known else self.computed)[rows])

    def set_stop_ids(self, row: int, stop_ids: Sequence[int]) -> None:
        missing = len(stop_ids) - self.stop_ids.shape[1]
        if missing > 0:
            self.stop_ids = np.pad(self.stop_ids, ((0, 0), (0, missing)), constant_values=-1)
        self.stop_ids[row] = -1
        self.stop_ids[row, : len(stop_ids)] = stop_ids

    def _swap(self, first: int, second: int) -> None:
        if first == second:
            return
        length = int(self.computed[[first, second]].max())
        if length:
            self._cache.swap(first, second, length)
        pair, turned = [first, second], [second, first]
        for column in (
            self.tokens, self.length, self.computed, self.running, self.last_used, self.tickets, self.logprobs,
            self.prompt_length, self.max_length, self.time_s, self.submitted_s, self.began_s, self.stop_ids, self.seeds,
            self.temperature, self.top_k, self.top_p,
        ):  # fmt: skip
            column[pair] = column[turned]
