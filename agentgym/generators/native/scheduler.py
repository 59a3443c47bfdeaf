"""Continuous batching: new sequences join, all running ones get a token per step, ended ones leave."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from agentgym.errors import InfraError
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.layout import decode_batch, extend_batch
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.rows import RowTable
from agentgym.generators.native.sampler import sample, uniforms
from agentgym.generators.native.weights import DecoderWeights
from agentgym.generators.slots import Line
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan

_WORTH_SHARING = 16  # tokens: a shorter common prefix is computed twice rather than waited for


@dataclass(slots=True, kw_only=True)
class SchedulerTotals:
    """Sums since the start."""

    tokens: int = 0  # sampled
    prompt_tokens: int = 0
    computed_tokens: int = 0  # of contexts, recomputation after updates included
    prefill_s: float = 0.0
    decode_s: float = 0.0


class Scheduler:
    """Owns the cache rows. Not thread-safe: one thread calls it, and everything may change between steps."""

    def __init__(self, model: DecoderModel, cache: KVCache, *, max_batch: int, max_padded_tokens: int) -> None:
        self.version = 0
        self.totals = SchedulerTotals()
        self._model = model
        self._cache = cache
        self._max_batch = max_batch
        self._max_padded_tokens = max_padded_tokens  # of one forward pass over new tokens
        self._table = RowTable(cache)
        self._waiting: Line[tuple[GenerateRequest, float]] = Line()  # with when it came
        # of each ticket that holds a row: (version, first completion token sampled by it)
        self._sequences: dict[int, list[tuple[int, int]]] = {}
        self._to_extend: list[int] = []  # tickets whose context is not computed yet

    @property
    def num_running(self) -> int:
        return len(self._sequences)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        return not len(self._waiting) and not self._sequences

    def metrics(self) -> dict[str, float]:
        totals = self.totals
        return {
            "generator/tokens_total": totals.tokens,
            "generator/prompt_tokens_total": totals.prompt_tokens,
            "generator/computed_tokens_total": totals.computed_tokens,
            "generator/prefill_s": totals.prefill_s,
            "generator/decode_s": totals.decode_s,
            "generator/running": self.num_running,
            "generator/waiting": self.num_waiting,
            "generator/slots": self._max_batch,
            "generator/kv_share": self._table.share,
            "generator/evicted_tokens_total": self._table.evicted,
        }

    def submit(self, ticket: int, request: GenerateRequest) -> None:
        """The request must have passed `check_request`."""
        self._waiting.put(ticket, (request, time.monotonic()), continues=request.continues)

    def cancel(self, ticket: int) -> None:
        """Forget a request and free its row; does nothing for one that has ended."""
        if not self._waiting.remove(ticket) and self._sequences.pop(ticket, None) is not None:
            self._table.free(self._table.row_of(ticket))
            if ticket in self._to_extend:
                self._to_extend.remove(ticket)

    def set_weights(self, version: int, weights: DecoderWeights) -> None:
        """The next token comes from these weights, after a context computed by them."""
        self._model.weights = weights
        self.version = version
        self._table.forget_computed()
        self._to_extend = list(self._sequences)

    def step(self) -> list[tuple[int, Completion]]:
        """Admit what fits, then one token for every running sequence. Returns what ended, by ticket.

        Raises InfraError when the weights give no usable probabilities.
        """
        ended: list[tuple[int, Completion]] = []
        started = time.perf_counter()
        self._admit()
        while self._to_extend:
            for rows in self._chunks(self._next_wave()):
                ended += self._extend(rows)
        extended = time.perf_counter()
        self.totals.prefill_s += extended - started
        if self._sequences:
            self._table.compact()
            ended += self._decode()
            self.totals.decode_s += time.perf_counter() - extended
        return ended

    def _admit(self) -> None:
        while len(self._waiting) and len(self._sequences) < self._max_batch:
            ticket, (request, submitted_s) = self._waiting.pop()
            sampling = request.sampling
            table = self._table
            row = table.take(request.prompt_ids)
            seed = int.from_bytes(os.urandom(8), "little") if sampling.seed is None else sampling.seed
            table.tickets[row] = ticket
            table.max_length[row] = len(request.prompt_ids) + sampling.max_tokens
            table.time_s[row], table.submitted_s[row] = request.time_s, submitted_s
            table.seeds[row] = seed % 2**64
            table.temperature[row] = sampling.temperature
            table.top_k[row] = sampling.top_k
            table.top_p[row] = sampling.top_p
            table.set_stop_ids(row, sampling.stop_token_ids)
            self._sequences[ticket] = []
            self._to_extend.append(ticket)
            self.totals.prompt_tokens += len(request.prompt_ids)

    def _next_wave(self) -> list[int]:
        """Rows to extend now. A row that shares a prefix with one of them waits for the next wave."""
        table = self._table
        wave: list[int] = []
        later: list[int] = []
        copies: dict[tuple[int, int], list[int]] = {}
        for ticket in self._to_extend:
            row = table.row_of(ticket)
            context = table.tokens[row, : table.length[row]]
            limit = len(context) - 1  # the last token is always computed: the next one is sampled after it
            own = int(table.computed[row])
            computed = np.flatnonzero(table.computed > 0)
            shared = table.shared_prefix(context, computed)
            best = min(int(shared.max()), limit) if shared.size else 0
            soon = table.shared_prefix(context, np.asarray(wave, np.int64), known=True)
            if wave and min(int(soon.max()), limit) >= max(own, best) + _WORTH_SHARING:
                later.append(ticket)
                continue
            if best > own:
                copies.setdefault((int(computed[shared.argmax()]), best), []).append(row)
            wave.append(row)
        for (source, length), rows in copies.items():
            self._cache.copy_prefix(source, rows, length)
            table.computed[rows] = length
        self._to_extend = later
        return wave

    def _chunks(self, rows: list[int]) -> list[list[int]]:
        """Rows with similar numbers of new tokens, so that little of a padded rectangle is wasted."""
        new = {row: int(self._table.length[row] - self._table.computed[row]) for row in rows}
        chunks: list[list[int]] = []
        longest = 0
        for row in sorted(rows, key=lambda row: -new[row]):
            fits = chunks and (len(chunks[-1]) + 1) * longest <= self._max_padded_tokens
            if fits and new[row] * 2 >= longest:
                chunks[-1].append(row)
            else:
                chunks.append([row])
                longest = new[row]
        return chunks

    def _extend(self, rows: list[int]) -> list[tuple[int, Completion]]:
        table = self._table
        starts = table.computed[rows]
        ends = table.length[rows]
        batch = extend_batch(
            self._cache, table.tokens, rows, starts, ends, heads_per_kv=self._model.architecture.heads_per_kv
        )
        logits_BV = self._model.forward(batch, self._cache)
        self.totals.computed_tokens += int((ends - starts).sum())
        table.computed[rows] = ends
        for row in rows:  # the only place where a sequence switches to new weights
            switches = self._sequences[int(table.tickets[row])]
            if not switches or switches[-1][0] != self.version:
                switches.append((self.version, int(table.length[row] - table.prompt_length[row])))
        return self._append(np.asarray(rows), logits_BV)

    def _decode(self) -> list[tuple[int, Completion]]:
        table = self._table
        span = table.span
        batch = decode_batch(self._cache, table.tokens, table.computed[:span])
        logits_BV = self._model.forward(batch, self._cache)
        table.computed[:span][table.running[:span]] += 1
        return self._append(np.arange(span), logits_BV)

    def _append(self, rows: npt.NDArray[np.int64], logits_BV: Tensor) -> list[tuple[int, Completion]]:
        """Sample the next token of each running row. Returns what ended with it."""
        table = self._table
        num_sampled = table.length[rows] - table.prompt_length[rows]
        tokens, logprobs = sample(
            logits_BV,
            uniforms_B=uniforms(table.seeds[rows], num_sampled),
            temperature_B=table.temperature[rows],
            top_k_B=table.top_k[rows],
            top_p_B=table.top_p[rows],
        )
        running = table.running[rows]
        if not running.all():
            rows, tokens, logprobs = rows[running], tokens[running], logprobs[running]
            num_sampled = num_sampled[running]
        if not np.isfinite(logprobs).all():
            raise InfraError(f"the weights of version {self.version} give log-probabilities that are not numbers")
        places = table.length[rows]
        table.tokens[rows, places] = tokens
        table.logprobs[rows, places] = logprobs
        table.length[rows] = places + 1
        self.totals.tokens += len(rows)
        now_s = time.monotonic()
        table.began_s[rows[num_sampled == 0]] = now_s
        late = now_s - table.began_s[rows] >= table.time_s[rows]
        full = table.length[rows] >= table.max_length[rows]
        stopped = (table.stop_ids[rows] == tokens[:, None]).any(axis=1)
        reasons = ((stopped, FinishReason.STOP), (full, FinishReason.LENGTH), (late, FinishReason.TIME))
        return [
            self._finish(int(rows[i]), next(reason for holds, reason in reasons if holds[i]))
            for i in np.flatnonzero(stopped | full | late)
        ]

    def _finish(self, row: int, reason: FinishReason) -> tuple[int, Completion]:
        table = self._table
        ticket = int(table.tickets[row])
        starts = self._sequences.pop(ticket)
        begin, end = int(table.prompt_length[row]), int(table.length[row])
        ends = [start for _, start in starts[1:]] + [end - begin]
        completion = Completion(
            completion_ids=tuple(table.tokens[row, begin:end].tolist()),
            logprobs=tuple(table.logprobs[row, begin:end].tolist()),
            versions=tuple(
                VersionSpan(version=version, start=start, end=span_end)
                for (version, start), span_end in zip(starts, ends, strict=True)
            ),
            finish_reason=reason,
            queued_s=float(table.began_s[row] - table.submitted_s[row]),
        )
        table.free(row)
        return ticket, completion
