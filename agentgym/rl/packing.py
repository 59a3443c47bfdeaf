"""Packs samples into rows of tokens: documents side by side, positions restarting, nothing cut or lost.

Axes: R rows, L tokens of one row, S samples, T tokens of all samples one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from agentgym.rl.columns import OPTIONAL, column_of, has_column, lengths_of
from agentgym.routes import UNKNOWN
from agentgym.types import Sample

ROW_MULTIPLE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainBatch:
    """Rows that a trainer reads. All tensors but the last three: [R, L].

    Entry t refers to the prediction of the next token: labels[t] is that token, and loss_mask, logprobs,
    advantages and versions are those of that token. A document's last entry predicts nothing.
    positions: 0 at each document's start; every padding token also has position 0, as a document of its own.
    routes: [R, L, width], of the entry's own token; -1 where unknown. Its width is 0 where not all samples have routes.
    sample_index: -1 in padding. ref_logprobs, old_logprobs, returns: zeros without has_reference, has_old, has_returns.
    starts: [S], where sample i begins in a flattened [R * L]; lengths: [S].
    """

    token_ids: Tensor
    labels: Tensor
    positions: Tensor
    loss_mask: Tensor
    sampler_logprobs: Tensor
    ref_logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    returns: Tensor
    versions: Tensor
    sample_index: Tensor
    routes: Tensor
    starts: Tensor
    lengths: Tensor
    num_trained_tokens: int
    num_tokens: int
    num_samples: int
    has_reference: bool
    has_old: bool
    has_returns: bool

    @property
    def num_rows(self) -> int:
        return self.token_ids.shape[0]

    @property
    def row_length(self) -> int:
        return self.token_ids.shape[1]

    def follows(self) -> Tensor:
        """[R, L]: whether the next token is of the same sample."""
        index, follows_RL = self.sample_index, torch.zeros_like(self.loss_mask)
        follows_RL[:, :-1] = (index[:, :-1] == index[:, 1:]) & (index[:, 1:] >= 0)
        return follows_RL


def pack(
    samples: Sequence[Sample],
    *,
    seq_len: int,
    rows_divisible_by: int = 1,
    attention_break_even: float | None = None,
    part_rows: int = 1,
    one_per_row: bool = False,
) -> TrainBatch:
    """Pack samples into as few rows as first-fit-decreasing finds. Deterministic.

    seq_len: the longest row allowed. attention_break_even: the row length at which attention costs as much as
    the rest of a layer; rows are then as short as makes the whole cheapest. None: rows are seq_len long.
    rows_divisible_by: empty rows are added, so that ranks get equally many. part_rows: of the parts that a rank reads;
    above 1 an empty row is added to a part that would have a single one. one_per_row: no two samples share a row.
    Raises ValueError for a sample that does not fit and for an empty batch.
    """
    if not samples:
        raise ValueError("nothing to pack: the batch has no samples")
    lengths = lengths_of(samples)
    for index, length in enumerate(lengths):
        if not 0 < length <= seq_len:
            raise ValueError(
                f"sample {samples[index].sample_id} has {length} tokens; a row holds 1 to {seq_len}. "
                "Raise trainer.seq_len or lower rollout.max_episode_tokens."
            )
    starts, num_rows, row_length = laid_out(tuple(lengths), seq_len, attention_break_even, one_per_row)
    num_rows += -num_rows % rows_divisible_by
    if part_rows > 1 and any(p.stop - p.start == 1 for p in even_slices(num_rows // rows_divisible_by, part_rows)):
        num_rows += rows_divisible_by
    return _fill(samples, lengths, starts, num_rows, row_length)


@lru_cache(maxsize=2)  # a trainer asks twice: which samples a rank reads, and then for their rows
def laid_out(
    lengths: tuple[int, ...], seq_len: int, attention_break_even: float | None, one_per_row: bool = False
) -> tuple[list[int], int, int]:
    """Where each document begins in the flattened rows, the number of rows and their length; see `pack`."""
    row_length = seq_len
    if one_per_row:
        if attention_break_even is not None:
            row_length = min(seq_len, math.ceil(max(lengths) / ROW_MULTIPLE) * ROW_MULTIPLE)
        order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))  # ranks get documents of like lengths
        rows = dict(zip(order, range(len(order)), strict=True))
        return [rows[index] * row_length for index in range(len(lengths))], len(lengths), row_length
    if attention_break_even is not None:
        row_length = cheapest_row_length(lengths, seq_len, attention_break_even)
    return *first_fit(lengths, row_length), row_length


def first_fit(lengths: Sequence[int], row_length: int) -> tuple[list[int], int]:
    """First-fit-decreasing: where each document begins in the flattened rows, and the number of rows."""
    starts = [0] * len(lengths)
    used: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        length = lengths[index]
        row = next((r for r, filled in enumerate(used) if filled + length <= row_length), len(used))
        if row == len(used):
            used.append(0)
        starts[index] = row * row_length + used[row]
        used[row] += length
    return starts, len(used)


def cheapest_row_length(lengths: Sequence[int], seq_len: int, attention_break_even: float) -> int:
    """The row length with the least cost, where a row of L tokens costs L * (attention_break_even + L)."""
    shortest = min(seq_len, math.ceil(max(lengths) / ROW_MULTIPLE) * ROW_MULTIPLE)
    candidates = range(shortest, min(seq_len, 4 * shortest) + 1, ROW_MULTIPLE)

    def cost(length: int) -> float:
        num_rows = first_fit(lengths, length)[1]
        return num_rows * length * (attention_break_even + length)

    return min(candidates, key=cost)


def unpack(batch: TrainBatch, values: Tensor) -> list[tuple[float, ...]]:
    """Give each sample what was computed for its tokens; 0.0 for the first token, which nothing predicts.

    values: [R, L], entry t refers to the next token, rows as in the whole batch.
    """
    flat = values.flatten().tolist()
    spans = zip(batch.starts.tolist(), batch.lengths.tolist(), strict=True)
    return [(0.0, *flat[start : start + length - 1]) for start, length in spans]


def of_trained(batch: TrainBatch, values_RL: Tensor) -> list[float]:
    """Selects the entries of the trained tokens, in the order of the samples."""
    places_N = batch.loss_mask.flatten().nonzero()[:, 0]
    order_N = batch.sample_index.flatten()[places_N].argsort(stable=True)
    values: list[float] = values_RL.flatten().cpu()[places_N[order_N]].tolist()
    return values


def row_slices(num_rows: int, size: int, rank: int = 0, num_ranks: int = 1) -> Iterator[slice]:
    """The rows of one rank, every num_ranks-th, in parts as of `even_slices`."""
    for part in even_slices(len(range(rank, num_rows, num_ranks)), size):
        yield slice(rank + part.start * num_ranks, rank + part.stop * num_ranks, num_ranks)


def read_by(
    lengths: Sequence[int],
    seq_len: int,
    attention_break_even: float | None,
    rank: int,
    num_ranks: int,
    one_per_row: bool = False,
) -> list[int]:
    """Which of the documents, by index, are in the rows of one rank."""
    starts, _, row_length = laid_out(tuple(lengths), seq_len, attention_break_even, one_per_row)
    return [index for index, start in enumerate(starts) if start // row_length % num_ranks == rank]


def even_slices(count: int, most: int) -> Iterator[slice]:
    """Cuts into as few parts as possible with at most `most` each. No two differ by more than one, so that few sizes
    are compiled for.
    """
    num_parts = -(-count // most)
    first = 0
    for part in range(num_parts):
        size = count // num_parts + (part < count % num_parts)
        yield slice(first, first + size)
        first += size


def _fill(
    samples: Sequence[Sample], lengths: list[int], starts: list[int], num_rows: int, row_length: int
) -> TrainBatch:
    lengths_S, starts_S = torch.tensor(lengths), torch.tensor(starts)
    ends_S = lengths_S.cumsum(0)
    positions_T = torch.arange(int(ends_S[-1])) - (ends_S - lengths_S).repeat_interleave(lengths_S)
    target_T = starts_S.repeat_interleave(lengths_S) + positions_T
    has_next_T = torch.ones_like(target_T, dtype=torch.bool)
    has_next_T[ends_S - 1] = False
    given = {name: has_column(samples, name) for name in OPTIONAL}

    def to_rows(values_T: Tensor, padding: int = 0) -> Tensor:
        rows = torch.full((num_rows * row_length, *values_T.shape[1:]), padding, dtype=values_T.dtype)
        rows[target_T] = values_T
        return rows.view(num_rows, row_length, *values_T.shape[1:])

    def of_next_token(values_T: Tensor) -> Tensor:
        return to_rows(torch.where(has_next_T, values_T.roll(-1), values_T.new_zeros(())))

    def column(name: str, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(column_of(samples, name)).to(dtype)

    def optional(name: str) -> Tensor:
        return column(name, torch.float32) if given[name] else torch.zeros(len(target_T))

    token_ids_T = column("token_ids", torch.int64)
    trained_T = column("loss_mask", torch.float32) != 0
    return TrainBatch(
        token_ids=to_rows(token_ids_T),
        labels=of_next_token(token_ids_T),
        positions=to_rows(positions_T),
        loss_mask=of_next_token(trained_T),
        sampler_logprobs=of_next_token(column("logprobs", torch.float32)),
        ref_logprobs=of_next_token(optional("ref_logprobs")),
        old_logprobs=of_next_token(optional("old_logprobs")),
        advantages=of_next_token(column("advantages", torch.float32)),
        returns=of_next_token(optional("returns")),
        versions=of_next_token(column("versions", torch.int64)),
        sample_index=to_rows(torch.arange(len(samples)).repeat_interleave(lengths_S), padding=-1),
        routes=to_rows(_routes(samples) if given["routes"] else torch.zeros(len(target_T), 0, dtype=torch.int32), -1),
        starts=starts_S,
        lengths=lengths_S,
        num_trained_tokens=int(trained_T.sum()),
        num_tokens=len(target_T),
        num_samples=len(samples),
        has_reference=given["ref_logprobs"],
        has_old=given["old_logprobs"],
        has_returns=given["returns"],
    )


def _routes(samples: Sequence[Sample]) -> Tensor:
    """[T, width], -1 where unknown."""
    ids = torch.from_numpy(column_of(samples, "routes").astype("int32"))
    return ids.masked_fill_(ids == UNKNOWN, -1)
