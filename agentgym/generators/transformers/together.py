"""Computes sequences in one batch, which they join and leave between tokens, and continues contexts that it has.

Axes: B rows, N new tokens of each row, V vocabulary, W width of routes. Rows end at the same slot: shorter ones are
padded in front, as transformers pads what it generates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from agentgym.generators.transformers.alone import last_only
from agentgym.generators.transformers.cache_rows import CacheRows
from agentgym.generators.transformers.sequence import Sequence
from agentgym.models.routers import Routers

_WORTH_REUSING = 16  # tokens: a shorter common prefix is computed again


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kept:
    """What was computed of a sequence that has ended. routes: of its tokens, if they are recorded."""

    tokens: npt.NDArray[np.int64]
    cache: Any
    routes: bytes


class Together:
    """Implements `Computing`. max_padded_tokens: of one pass over contexts. keep: sequences that may be continued."""

    def __init__(
        self, model: nn.Module, rows: CacheRows, routers: Routers | None, *, max_padded_tokens: int, keep: int
    ) -> None:
        self.num_computed = 0
        self._rows = rows
        self._max_padded_tokens = max_padded_tokens
        self._keep = keep
        self._last_only = last_only(model)
        self._running: list[Sequence] = []
        self.set_model(model, routers)

    def set_model(self, model: nn.Module, routers: Routers | None) -> None:
        self._model, self._routers = model, routers
        self._device = next(model.parameters()).device
        self._kept: list[Kept] = []  # the latest is the last
        for sequence in self._running:
            sequence.forget_computed()
        self._running = []
        self._cache: Any = None
        self._length = 0  # slots of the cache

    def compute(self, sequences: list[Sequence]) -> tuple[list[Sequence], Tensor]:
        running = set(self._running)
        logits = [self._forward(self._running, self._cache, self._length, 1)] if self._running else []
        self._length += bool(self._running)
        for alike in self._chunks([sequence for sequence in sequences if sequence not in running]):
            logits.append(self._begin(alike))
        return self._running, torch.cat(logits)

    def leave(self, ended: Collection[Sequence]) -> None:
        gone = set(ended)
        for row, sequence in enumerate(self._running):
            if sequence in gone and (self._routers is None or len(sequence.switches) == 1):
                cache = self._rows.selected(self._cache, [row], self._length - sequence.computed, self._length)
                tokens = np.asarray(sequence.tokens[: sequence.computed])
                self._kept.append(Kept(tokens=tokens, cache=cache, routes=bytes(sequence.routes)))
        del self._kept[: -self._keep]
        left = [row for row, sequence in enumerate(self._running) if sequence not in gone]
        if len(left) < len(self._running):
            self._running = [self._running[row] for row in left]
            length = max((sequence.computed for sequence in self._running), default=0)
            begin = self._length - length
            self._cache = self._rows.selected(self._cache, left, begin, self._length) if left else None
            self._length = length

    def _chunks(self, begun: Iterable[Sequence]) -> list[list[list[Sequence]]]:
        """Sequences to begin, by passes, each a list of lists with the same tokens, which are computed once."""
        same: dict[tuple[int, ...], list[Sequence]] = {}
        for sequence in begun:
            same.setdefault(tuple(sequence.tokens), []).append(sequence)
        for alike in same.values():
            self._reuse(alike[0])
        chunks: list[list[list[Sequence]]] = []
        key = (lambda one: (one.computed, _new(one))) if self._rows.carries else _new
        for alike in sorted(same.values(), key=lambda alike: key(alike[0]), reverse=True):
            longest, first = chunks[-1][0][0] if chunks else alike[0], alike[0]
            fits = bool(chunks) and (len(chunks[-1]) + 1) * _new(longest) <= self._max_padded_tokens
            close = key(first) == key(longest) if self._rows.carries else 2 * _new(first) >= _new(longest)
            if fits and close:
                chunks[-1].append(alike)
            else:
                chunks.append([alike])
        return chunks

    def _reuse(self, sequence: Sequence) -> None:
        """Takes the longest beginning of it that was kept; of rows that carry a state only a whole one."""
        tokens, best = np.asarray(sequence.tokens), 0
        for kept in self._kept:
            size = min(len(kept.tokens), len(tokens) - 1)  # its last token is always computed
            equal = kept.tokens[:size] == tokens[:size]
            shared = size if equal.all() else int(equal.argmin())
            usable = shared == len(kept.tokens) or (shared >= _WORTH_REUSING and not self._rows.carries)
            if usable and shared > best:
                best, found = shared, kept
        if best:
            sequence.cache = self._rows.selected(found.cache, [0], 0, best)
            sequence.computed = best
            width = len(found.routes) // len(found.tokens)
            sequence.routes = sequence.routes or bytearray(found.routes[: best * width])
            if best == len(found.tokens) and sequence.request.continues:
                self._kept.remove(found)

    def _begin(self, chunk: list[list[Sequence]]) -> Tensor:
        """One pass over new tokens, after which the sequences are in the batch. Rows that have more of their tokens
        than others compute some again, so that all have as many new ones.
        """
        firsts = [alike[0] for alike in chunk]
        most = max(map(_new, firsts))
        for one in firsts:
            computed = max(0, len(one.tokens) - most)
            if computed < one.computed:
                one.cache = self._rows.selected(one.cache, [0], 0, computed) if computed else None
                one.computed = computed
        lengths = [one.computed for one in firsts]
        length = max(lengths)
        cache = self._rows.joined([one.cache for one in firsts], lengths) if length else self._rows.empty()
        logits = self._forward(firsts, cache, length, most, chunk)
        copies = [row for row, alike in enumerate(chunk) for _ in alike]
        if len(copies) > len(firsts):
            cache, logits = self._rows.selected(cache, copies, 0, length + most), logits[copies]
        if self._running:
            cache = self._rows.joined([self._cache, cache], [self._length, length + most])
        self._cache, self._length = cache, max(self._length, length + most)
        self._running = self._running + [sequence for alike in chunk for sequence in alike]
        return logits

    def _forward(
        self, rows: list[Sequence], cache: Any, length: int, new: int, chunk: list[list[Sequence]] | None = None
    ) -> Tensor:
        """Logits [B, V] after the last of `new` tokens of each row. chunk: all sequences with a row's tokens."""
        end = np.asarray([len(one.tokens) for one in rows])
        tokens_BN = np.zeros((len(rows), new), np.int64)
        for row, one in enumerate(rows):
            tokens_BN[row, -min(new, end[row]) :] = one.tokens[-new:]
        positions_BN = (end[:, None] - new + np.arange(new)).clip(0)
        mask = (np.arange(length + new) >= length + new - end[:, None]).astype(np.int64)
        if self._routers is not None:
            self._routers.record()
        output = self._model(
            input_ids=self._on_device(tokens_BN),
            attention_mask=self._on_device(mask),
            position_ids=self._on_device(positions_BN),
            past_key_values=cache,
            use_cache=True,
            **self._last_only,
        )
        self.num_computed += int(np.minimum(end, new).sum())
        alike = chunk or [[one] for one in rows]
        if self._routers is not None:
            routes_BNW = self._routers.taken().to(torch.uint16).cpu().view(len(rows), new, -1)
            for same, routes_NW in zip(alike, routes_BNW, strict=True):
                for one in same:
                    one.routes = one.routes or bytearray(same[0].routes)
                    one.add_routes(routes_NW)
        for one in (one for same in alike for one in same):
            one.cache, one.computed = None, len(one.tokens)
        logits: Tensor = output.logits[:, -1].float()
        return logits

    def _on_device(self, values: npt.NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(self._device)


def _new(sequence: Sequence) -> int:
    return len(sequence.tokens) - sequence.computed
