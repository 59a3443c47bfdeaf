"""All episodes of a run as one table of columns, made of the indexes of its files and kept up to date."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.evals.statistics import unrecorded
from agentgym.policies.outside.prices import Prices
from agentgym.runs.episode_index import (
    KEYS,
    FileIndex,
    build_index,
    index_path,
    mark_of,
    read_at,
    read_index,
    write_index,
)
from agentgym.tables.problems import Problem
from agentgym.tables.roots import inside

FOLDERS = {"train": "episodes", "eval": "evals"}  # by source
_FILE = re.compile(r"step-(\d+)(\.part)?\.jsonl(\.gz)?")
_KEY = re.compile(r"(train|eval)-(\d{1,9})-(\d{1,9})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The episodes of one file. stamp: of the file when it was read; first: its first row in the table."""

    source: str
    step: int
    path: Path
    stamp: tuple[int, int, int]
    index: FileIndex
    first: int = 0

    @property
    def count(self) -> int:
        return len(self.index.locations)

    @property
    def rows(self) -> range:
        """Its rows in the table."""
        return range(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """columns: of all parts, one after another; `source`, `step`, `n` (from 1, within the step) and `cost` besides
    KEYS. prices: of the costs; where they are unknown every cost is None.
    """

    parts: tuple[Part, ...]
    columns: dict[str, list[Any]]
    prices: Prices | None = None

    def __len__(self) -> int:
        return len(self.columns["n"])

    def key(self, row: int) -> str:
        """The key of an episode in links."""
        columns = self.columns
        return f"{columns['source'][row]}-{columns['step'][row]}-{columns['n'][row]}"

    def part(self, source: str, step: int) -> Part:
        """The episodes of one step. Raises Problem."""
        for one in self.parts:
            if (one.source, one.step) == (source, step):
                return one
        raise Problem.unknown("step", f"{source}-{step}", (f"{one.source}-{one.step}" for one in self.parts))

    def find(self, key: str) -> tuple[Part, int]:
        """The part and the row of an episode. Raises Problem."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise Problem("invalid", f"{key[:100]!r} does not name an episode; names are like train-12-3 and eval-20-1")
        source, number = match[1], int(match[3])
        part = self.part(source, int(match[2]))
        if not 1 <= number <= part.count:
            raise Problem(
                "not_found", f"no episode {key!r}: this step has 1 to {part.count}", f"{source}-{part.step}-1"
            )
        return part, part.first + number - 1

    def read(self, key: str) -> tuple[int, dict[str, Any]]:
        """The row of an episode and its whole record. Raises Problem."""
        part, row = self.find(key)
        try:
            return row, read_at(part.path, part.index.locations[row - part.first])
        except (OSError, ValueError) as error:
            raise Problem("gone", f"the episode {key!r} could not be read: {error}") from None


@dataclass(slots=True)
class Tables:
    """The tables of one run. cache: where indexes of files that have none are kept; None keeps them in memory only.
    prices: asked whenever the table is read."""

    path: Path
    cache: Path | None
    prices: Callable[[], Prices | None] = lambda: None
    _table: Table | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> Table:
        """The episodes so far. Only files that are new or have changed are read."""
        prices = self.prices()
        with self._lock:
            known = {part.path: part for part in self._table.parts} if self._table else {}
            parts = [
                one if (one := known.get(path)) and one.stamp == stamp else self._load(source, step, path, stamp, one)
                for source, step, path, stamp in episode_files(self.path)
            ]
            found = [part for part in parts if part is not None]
            same = self._table is not None and self._table.prices == prices
            if not same or [id(p) for p in found] != [id(p) for p in known.values()]:
                self._table = _joined(found, prices)
            assert self._table is not None
            return self._table

    def _load(
        self, source: str, step: int, path: Path, stamp: tuple[int, int, int], before: Part | None
    ) -> Part | None:
        """before: the file when it was read last, which may have grown since."""
        try:
            mark, known = mark_of(path), before.index if before and before.stamp[0] == stamp[0] else None
            index = read_index(index_path(path), mark) or self._cached(path, mark) or self._built(path, known)
        except OSError:  # a resumed run removed it meanwhile
            return None
        return Part(source=source, step=step, path=path, stamp=stamp, index=index)

    def _cached(self, path: Path, mark: str) -> FileIndex | None:
        cached = self._cached_path(path)
        return None if cached is None else read_index(cached, mark)

    def _built(self, path: Path, before: FileIndex | None) -> FileIndex:
        index = build_index(path, before)
        cached = self._cached_path(path)
        if cached is not None and path.suffix == ".gz" and index.locations:  # one that still grows is not kept
            try:
                cached.parent.mkdir(parents=True, exist_ok=True)
                write_index(cached, index)
            except OSError:
                self.cache = None
        return index

    def _cached_path(self, path: Path) -> Path | None:
        if self.cache is None:
            return None
        return self.cache / f"{hashlib.blake2b(os.fsencode(path.resolve()), digest_size=12).hexdigest()}.index.json"


def episode_files(
    run: Path, sources: Iterable[str] = tuple(FOLDERS)
) -> Iterator[tuple[str, int, Path, tuple[int, int, int]]]:
    """source, step, path and stamp of the episode files, by source and step; of an evaluation the whole file counts."""
    for source in sources:
        folder = FOLDERS[source]
        found: dict[int, tuple[Path, tuple[int, int, int]]] = {}
        path = inside(run, folder)
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name) if path is not None else []
        except OSError:
            continue
        for entry in entries:  # `.jsonl.gz` comes before `.part.jsonl`
            match = _FILE.fullmatch(entry.name)
            if match and int(match[1]) not in found and not entry.is_symlink():
                try:
                    stat = entry.stat()
                except OSError:
                    continue
                found[int(match[1])] = Path(entry.path), (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        for step in sorted(found):
            yield source, step, *found[step]


def _joined(parts: list[Part], prices: Prices | None) -> Table:
    columns: dict[str, list[Any]] = {key: [] for key in ("source", "step", "n", *sorted(KEYS))}
    placed, first = [], 0
    for part in parts:
        count = part.count
        placed.append(
            Part(source=part.source, step=part.step, path=part.path, stamp=part.stamp, index=part.index, first=first)
        )
        first += count
        columns["source"] += [part.source] * count
        columns["step"] += [part.step] * count
        columns["n"] += range(1, count + 1)
        for key in KEYS if count else ():
            columns[key] += part.index.columns[key]
    if (missing := unrecorded(columns["success"])) is not None:
        columns["success"] = [missing if one is None else one for one in columns["success"]]
    columns["cost"] = _costs(columns, prices)
    return Table(parts=tuple(placed), columns=columns, prices=prices)


def _costs(columns: Mapping[str, Sequence[Any]], prices: Prices | None) -> list[float | None]:
    """Of each episode; None where no server counted, or no price is known."""
    counts = zip(columns["asked_tokens"], columns["cached_tokens"], columns["tokens"], strict=True)
    return [
        None
        if prices is None or asked is None
        else prices.cost({"prompt_tokens": asked, "cached_tokens": cached, "completion_tokens": answered})
        for asked, cached, answered in counts
    ]
