"""Rows of data sets without end: streamed, shuffled, sharded, mixed by weight, and continued where they were.

`datasets` reads; the shuffling and the mixing are here, because their state has to be saved whole: a shuffle buffer
that is lost on a resume loses the rows in it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from agentgym import data_sets
from agentgym.errors import UserError
from agentgym.import_path import import_object

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """One data set, as `datasets.load_dataset` names it: a hub name, or a reader such as `json` with data_files.

    weight: its share of the mixture, relative to the others. transform: a function of a row, or its import path; a row
    for which it gives None is left out.
    """

    path: str
    subset: str | None = None
    split: str = "train"
    data_files: str | tuple[str, ...] | None = None
    revision: str | None = None
    streaming: bool = True
    weight: float = 1.0
    transform: str | Callable[[Row], Row | None] | None = None

    @property
    def name(self) -> str:
        return f"{self.path} {self.data_files or self.subset or ''}".strip()

    def __post_init__(self) -> None:
        if not 0 < self.weight < float("inf"):
            raise UserError(
                f"data set {self.name}: its weight is {self.weight}; give a number above 0, or leave the data set out"
            )


@dataclass(slots=True, kw_only=True)
class RowStream:
    """Draws rows from a mixture.

    shuffle_buffer: rows of each source that wait to be drawn at random; 0 keeps the source's order. num_shards, shard:
    of all rows this stream gives one in num_shards, and no other shard the same. repeat: sources begin again, each
    time in another order; without it one that has ended is left out, and None follows the last. Raises UserError for
    a mixture without sources, and when it is opened for a source without rows.
    """

    sources: Sequence[RowSource]
    shuffle_buffer: int = 1000
    seed: int = 0
    num_shards: int = 1
    shard: int = 0
    repeat: bool = True
    _readers: list[_Reader] = field(init=False)
    _random: random.Random = field(init=False)
    _drawn: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        if not self.sources:
            raise UserError("a mixture without data sets: give at least one source")
        if not 0 <= self.shard < self.num_shards or self.shuffle_buffer < 0:
            raise UserError(
                f"rows: shard {self.shard} must be from 0 to below num_shards {self.num_shards}, and shuffle_buffer "
                f"{self.shuffle_buffer} at least 0"
            )
        self._random = random.Random(f"{self.seed}/{self.shard}/mixture")
        self._readers = [_Reader(source, self, f"{self.seed}/{number}") for number, source in enumerate(self.sources)]

    def open(self) -> None:
        """Read the first row of every source, which a mixture needs all of. Raises UserError."""
        for reader in self._readers:
            reader.fill()

    def draw(self) -> Row | None:
        """The next row; None when all sources have ended."""
        self.open()
        while left := [reader for reader in self._readers if not reader.ended]:
            weights = [reader.source.weight for reader in left]
            row = self._random.choices(left, weights)[0].draw()
            if row is not None:
                self._drawn += 1
                return row
        return None

    def __iter__(self) -> Iterator[Row]:
        while (row := self.draw()) is not None:
            yield row

    @property
    def num_drawn(self) -> int:
        return self._drawn

    def epochs(self) -> dict[str, int]:
        """How often each source has begun again."""
        return {reader.source.name: reader.epoch for reader in self._readers}

    def state_dict(self) -> dict[str, Any]:
        """The position, with the rows that wait in the shuffle buffers."""
        return {
            "drawn": self._drawn,
            "random": self._random.getstate(),
            "sources": [reader.state_dict() for reader in self._readers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next rows are those that would have followed. Raises UserError for the state of another mixture."""
        names = [one["name"] for one in state["sources"]]
        if names != [source.name for source in self.sources]:
            raise UserError(f"the saved position is of the data sets {names}, not of {[s.name for s in self.sources]}")
        self._drawn = state["drawn"]
        self._random.setstate(state["random"])
        for reader, one in zip(self._readers, state["sources"], strict=True):
            reader.load_state_dict(one)


class _Reader:
    """One source: its data set, its place in it, and the rows that wait."""

    def __init__(self, source: RowSource, stream: RowStream, seed: str) -> None:
        self.source, self._stream = source, stream
        self.epoch = 0
        self._read_out = False
        self._data: Any = None
        self._rows: Iterator[Any] | None = None
        self._waiting: list[Row] = []
        self._found = 0  # rows of this epoch
        self._random = random.Random(f"{seed}/{stream.shard}")
        given = source.transform
        found: Any = import_object(given) if isinstance(given, str) else given
        self._transform: Callable[[Row], Row | None] | None = found

    @property
    def ended(self) -> bool:
        return self._read_out and not self._waiting

    def fill(self) -> None:
        """Reads until one row more waits than the shuffle buffer holds, or none is left."""
        while not self._read_out and len(self._waiting) <= self._stream.shuffle_buffer:
            row = self._next()
            if row is not None:
                self._waiting.append(row)

    def draw(self) -> Row | None:
        """None where the source has ended."""
        self.fill()
        if not self._waiting:
            return None
        at = self._random.randrange(len(self._waiting))
        self._waiting[at], self._waiting[-1] = self._waiting[-1], self._waiting[at]
        return self._waiting.pop()

    def state_dict(self) -> dict[str, Any]:
        return {
            "name": self.source.name,
            "epoch": self.epoch,
            "read_out": self._read_out,
            "found": self._found,
            "waiting": list(self._waiting),
            "random": self._random.getstate(),
            "data": None if self._rows is None else self._data.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.epoch, self._read_out, self._found = state["epoch"], state["read_out"], state["found"]
        self._waiting = list(state["waiting"])
        self._random.setstate(state["random"])
        self._rows = None
        if state["data"] is not None:
            self._open()
            self._data.load_state_dict(state["data"])
            self._rows = iter(self._data)

    def _next(self) -> Row | None:
        """The next row, or None where the transform drops it or the last epoch is over."""
        if self._rows is None:
            self._open()
            self._rows = iter(self._data)
        row = next(self._rows, None)
        if row is not None:
            kept = dict(row) if self._transform is None else self._transform(dict(row))
            self._found += kept is not None
            return kept
        if not self._found:
            raise UserError(self._without_rows())
        self.epoch, self._found, self._rows = self.epoch + 1, 0, None
        self._read_out = not self._stream.repeat
        return None

    def _open(self) -> None:
        """Opens the data set at its first row."""
        self._data = split_rows(read_rows(self.source), self._stream.shard, self._stream.num_shards)

    def _without_rows(self) -> str:
        shards = self._stream.num_shards
        which = f" for shard {self._stream.shard} of {shards}" if shards > 1 else ""
        kept = " that its transform keeps" if self._transform is not None else ""
        return (
            f"data set {self.source.name}: its split {self.source.split!r} has no row{which}{kept}, so a mixture could "
            "never draw from it; leave it out, or correct its split"
        )


def read_rows(source: RowSource) -> Any:
    """An IterableDataset of `datasets`. Raises UserError for what can't be read."""
    found = data_sets.load(
        source.path,
        source.subset,
        files=[source.data_files] if isinstance(source.data_files, str) else source.data_files or (),
        who="data set",
        split=source.split,
        revision=source.revision,
        streaming=source.streaming,
    )
    return found if source.streaming else found.to_iterable_dataset()


def split_rows(rows: Any, shard: int, num_shards: int) -> Any:
    """One in num_shards: whole files where they can be shared out evenly, else every num_shards-th row."""
    if num_shards == 1:
        return rows
    from datasets.distributed import split_dataset_by_node

    return split_dataset_by_node(rows, rank=shard, world_size=num_shards)
