"""The batches that a trainer got since its last checkpoint, on disk, to train the same steps again. No torch.

    JOURNAL/step-000012.batch   the samples of a step, written before it is trained
    JOURNAL/position.json       of the run after its last finished step

A batch is a line of JSON, and the samples' columns behind it, packed by zlib. Each field of Sample keeps all its bits.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
import zlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentgym.errors import InfraError
from agentgym.rl.columns import SampleColumns
from agentgym.routes import Routes
from agentgym.runs.files import read_json, write_whole, writing
from agentgym.types import Json, Sample

FORMAT = 1
FAST = 1  # zlib's level: half the size of none, and faster than the disk
_NAME = re.compile(r"step-(\d+)\.batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step is trained on. version: of the newest weights that were published before it. moved: whether steps
    were trained since. rate: optimizer.lr of the step; None in the batch of an older version.
    """

    step: int
    version: int
    moved: bool = False
    rate: float | None = None
    samples: Sequence[Sample]


class Journal:
    """The batches since the last checkpoint, one a step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, batch: Batch) -> None:
        """Raises InfraError, which names the path, when the disk is full."""
        write_whole(self._path(batch.step), encode(batch))

    def read(self, step: int) -> Batch:
        """Raises InfraError when the batch is missing or damaged."""
        path = self._path(step)
        try:
            batch = decode(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError, zlib.error) as error:
            raise InfraError(f"the batch of step {step} can't be read from {path}: {error}") from error
        if batch.step != step:
            raise InfraError(f"{path} has the batch of step {batch.step}")
        return batch

    def steps(self) -> list[int]:
        """The steps whose batches are there."""
        found = (_NAME.fullmatch(path.name) for path in self.folder.glob("step-*.batch"))
        return sorted(int(name[1]) for name in found if name)

    def mark(self, position: Mapping[str, Json]) -> None:
        """Record that the step of this position has ended: all else that it leaves is on the disk."""
        write_whole(self._position, json.dumps(position).encode())

    def position(self, checkpoint: int) -> dict[str, Json]:
        """The last that was marked, if it can be reached from the checkpoint of this step; else empty.

        Raises UserError when it is damaged.
        """
        saved = read_json(self._position) if self._position.is_file() else {}
        step = saved.get("step")
        if not isinstance(step, int) or step <= checkpoint:
            return {}
        missing = set(range(checkpoint + 1, step + 1)) - set(self.steps())
        return {} if missing else saved

    def drop(self, step: int) -> None:
        """Remove what a checkpoint of this step has made superfluous."""
        for one in self.steps():
            if one <= step:
                self._remove(self._path(one))

    def clear(self) -> None:
        for path in (self._position, *map(self._path, self.steps())):
            self._remove(path)

    @property
    def _position(self) -> Path:
        return self.folder / "position.json"

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}.batch"

    def _remove(self, path: Path) -> None:
        with writing(path), contextlib.suppress(FileNotFoundError):
            path.unlink()


def encode(batch: Batch) -> bytes:
    samples = SampleColumns.of(batch.samples)
    rows, columns = _rows_of_columns(samples) if isinstance(samples, SampleColumns) else _rows(samples)
    head = {
        "format": FORMAT,
        "step": batch.step,
        "version": batch.version,
        "moved": batch.moved,
        "rate": batch.rate,
        "samples": rows,
    }
    return json.dumps(head).encode() + b"\n" + zlib.compress(b"".join(columns), FAST)


def _rows_of_columns(samples: SampleColumns) -> tuple[list[dict[str, Any]], list[bytes]]:
    """What `_rows` gives for them."""
    names = [field.name for field in fields(Sample)]
    parts = {name: samples.parts(name) for name in samples.columns}
    rows: list[dict[str, Any]] = []
    columns: list[bytes] = []
    for number, sample_id in enumerate(samples.ids):
        row: dict[str, Any] = {}
        for name in names:
            if name in parts:
                part = parts[name][number]
                row[name] = [part.dtype.char.replace("l", "q"), len(part), *part.shape[1:]]
                columns.append(part.tobytes())
            else:
                row[name] = {"sample_id": sample_id, "routes": None}.get(name, ["q", 0])
        rows.append(row)
    return rows, columns


def _rows(samples: Sequence[Sample]) -> tuple[list[dict[str, Any]], list[bytes]]:
    rows: list[dict[str, Any]] = []
    columns: list[bytes] = []
    for sample in samples:
        row: dict[str, Any] = {}
        for field in fields(Sample):
            value = getattr(sample, field.name)
            if isinstance(value, tuple):
                column = _column(value)
                row[field.name] = [column.typecode, len(column)]
                columns.append(column.tobytes())
            elif isinstance(value, Routes):
                row[field.name] = ["H", len(value), value.width]
                columns.append(value.ids)
            else:
                row[field.name] = value
        rows.append(row)
    return rows, columns


def decode(data: bytes) -> Batch:
    """What `encode` was given. Raises ValueError, KeyError, TypeError or zlib.error for anything else."""
    line, _, packed = data.partition(b"\n")
    head = json.loads(line)
    if head["format"] != FORMAT:
        raise ValueError(f"it has format {head['format']}; this version reads format {FORMAT}")
    body, place, samples = zlib.decompress(packed), 0, []
    for row in head["samples"]:
        values: dict[str, Any] = {}
        for name, value in row.items():
            if isinstance(value, list):
                column, shape = array(value[0]), value[1:]
                end = place + math.prod(shape) * column.itemsize
                if name == "routes":
                    value = Routes(width=shape[1], ids=body[place:end])
                else:
                    column.frombytes(body[place:end])
                    value = tuple(column)
                place = end
            values[name] = value
        samples.append(Sample(**values))
    if place != len(body):
        raise ValueError(f"{len(body)} bytes of columns, {place} expected")
    moved, rate = head.get("moved", False), head.get("rate")  # older versions of this format lack them
    return Batch(step=head["step"], version=head["version"], moved=moved, rate=rate, samples=samples)


def _column(values: Sequence[float]) -> array[Any]:
    try:
        return array("q", values)
    except TypeError:  # not integers
        return array("d", values)
