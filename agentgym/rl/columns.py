"""Many samples as a few arrays: quick to send, to write and to pack.

Axes: S samples, T tokens of all samples one after the other.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from agentgym.routes import Routes
from agentgym.types import Sample

Column = npt.NDArray[Any]
WHOLE = ("token_ids", "versions")
FRACTIONS = ("loss_mask", "logprobs", "advantages")
OPTIONAL = ("ref_logprobs", "old_logprobs", "returns", "routes")
COLUMNS = (*WHOLE, *FRACTIONS, *OPTIONAL)
"""Of Sample: whole numbers are int64, fractions float64, so that nothing is rounded. Routes are [T, width], uint16."""


@dataclass(frozen=True, slots=True, eq=False)
class SampleColumns(Sequence[Sample]):
    """The samples that it was made of, for whoever takes them one by one.

    ids: [S]. lengths: [S], of each one's tokens. columns: by name, [T]; of the optional ones those that all have.
    """

    ids: tuple[str, ...]
    lengths: Column
    columns: Mapping[str, Column]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Sequence[Sample]:
        """The samples as they are where some have an optional column and others have not."""
        if isinstance(samples, cls):
            return samples
        having = {name: sum(bool(getattr(sample, name)) for sample in samples) for name in OPTIONAL}
        if not samples or any(count not in (0, len(samples)) for count in having.values()):
            return samples
        names = (*WHOLE, *FRACTIONS, *(name for name, count in having.items() if count))
        lengths = np.array([len(sample.token_ids) for sample in samples], dtype=np.int64)
        columns = {name: _column(samples, name) for name in names}
        return cls(tuple(sample.sample_id for sample in samples), lengths, columns)

    def __len__(self) -> int:
        return len(self.ids)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        end = int(self.lengths[: number + 1].sum())
        return self._sample(number, end - int(self.lengths[number]), end)

    def __iter__(self) -> Iterator[Sample]:
        ends = self.lengths.cumsum().tolist()
        for number, (start, end) in enumerate(zip([0, *ends], ends, strict=False)):
            yield self._sample(number, start, end)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(a == b for a, b in zip(self, other))  # noqa: B905

    __hash__ = None  # type: ignore[assignment]

    def share(self, own: Sequence[int]) -> Share:
        """All samples for a process that reads only some of them. own: their indices."""
        return Share(self, np.isin(np.arange(len(self)), own))

    def parts(self, name: str) -> list[Column]:
        """The parts of a column, by sample."""
        return np.split(self.columns[name], self.lengths.cumsum()[:-1])

    def _sample(self, number: int, start: int, end: int) -> Sample:
        values: dict[str, Any] = {
            name: tuple(column[start:end].tolist()) for name, column in self.columns.items() if name != "routes"
        }
        if "routes" in self.columns:
            routes = self.columns["routes"][start:end]
            values["routes"] = Routes(width=routes.shape[1], ids=routes.tobytes())
        return Sample(sample_id=self.ids[number], **values)


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """Pickled, it becomes SampleColumns with zeros in all columns but loss_mask of the samples that are not `own`, [S].

    The mask, of a bit for each token, is what the loss's weights depend on besides the lengths.
    """

    whole: SampleColumns
    own: Column

    def __reduce__(self) -> tuple[Any, ...]:
        lengths, columns = self.whole.lengths, dict(self.whole.columns)
        mask = np.packbits(columns.pop("loss_mask") != 0)
        own_T = self.own.repeat(lengths)
        return _spread, (self.whole.ids, lengths, np.packbits(own_T), mask, {n: c[own_T] for n, c in columns.items()})


def _spread(
    ids: tuple[str, ...], lengths: Column, own: Column, mask: Column, columns: Mapping[str, Column]
) -> SampleColumns:
    count = int(lengths.sum())
    own_T = np.unpackbits(own, count=count).astype(bool)
    found = {"loss_mask": np.unpackbits(mask, count=count).astype(np.float64)}
    for name, column in columns.items():
        found[name] = np.zeros((count, *column.shape[1:]), dtype=column.dtype)
        found[name][own_T] = column
    return SampleColumns(ids, lengths, found)


def column_of(samples: Sequence[Sample], name: str) -> Column:
    """One column of all samples, [T]."""
    return samples.columns[name] if isinstance(samples, SampleColumns) else _column(samples, name)


def has_column(samples: Sequence[Sample], name: str) -> bool:
    """Whether all samples have an optional column."""
    if isinstance(samples, SampleColumns):
        return name in samples.columns
    return all(getattr(sample, name) for sample in samples)


def lengths_of(samples: Sequence[Sample]) -> list[int]:
    """Tokens of each."""
    if isinstance(samples, SampleColumns):
        found: list[int] = samples.lengths.tolist()
        return found
    return [len(sample.token_ids) for sample in samples]


def _column(samples: Sequence[Sample], name: str) -> Column:
    if name == "routes":
        return _routes([sample.routes for sample in samples if sample.routes is not None])
    code = "q" if name in WHOLE else "d"
    found = array(code)
    for sample in samples:
        found.extend(array(code, getattr(sample, name)))  # of a tuple it takes a quarter of an iterator's time
    return np.frombuffer(found, dtype=code)


def _routes(parts: Sequence[Routes]) -> Column:
    """[T, width]. Raises ValueError for samples of different widths."""
    widths = {part.width for part in parts}
    if len(widths) != 1:
        raise ValueError(f"the samples of a batch have routes of widths {sorted(widths)}")
    return np.frombuffer(b"".join(part.ids for part in parts), dtype="<u2").reshape(-1, *widths)
