"""The metrics of a run as they are appended: read on from where the last look ended."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

MAX_READ = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRow:
    """One step's metrics. time: seconds since the epoch."""

    step: int
    time: float
    metrics: dict[str, float]


@dataclass(slots=True)
class Tail:
    """The end of a file that grows. offset: bytes of whole lines that were read."""

    path: Path
    offset: int = 0
    _inode: int = 0

    def lines(self) -> tuple[list[bytes], bool]:
        """Whole new lines, and whether another file took the place of the one that was read before."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                replaced = self._is_replaced(file, found)
                self.offset, self._inode = 0 if replaced else self.offset, found.st_ino
                file.seek(self.offset)
                data = file.read(MAX_READ)
        except OSError:
            return [], False
        whole = data[: data.rfind(b"\n") + 1]
        self.offset += len(whole)
        return whole.splitlines(), replaced

    def skip(self) -> None:
        """Skips to the end of the last whole line."""
        try:
            data, self._inode = self.path.read_bytes(), self.path.stat().st_ino
        except OSError:
            return
        self.offset = data.rfind(b"\n") + 1

    def _is_replaced(self, file: BinaryIO, found: os.stat_result) -> bool:
        """Also where a client gives an offset that is not the end of a line."""
        if not self.offset:
            return False
        if self._inode and self._inode != found.st_ino:
            return True
        file.seek(self.offset - 1)
        return file.read(1) != b"\n"


@dataclass(slots=True)
class MetricsLog:
    """One `metrics.jsonl`. rows: one a step, in order; where a resumed run repeated steps, the later rows count."""

    path: Path
    rows: list[MetricsRow] = field(default_factory=list)
    _tail: Tail = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._tail = Tail(self.path)

    def read(self) -> list[MetricsRow]:
        """All rows so far; the list is not changed afterwards."""
        with self._lock:
            while True:
                lines, replaced = self._tail.lines()
                if not lines and not replaced:
                    return self.rows
                rows = [] if replaced else [*self.rows]
                for row in filter(None, map(parse_row, lines)):
                    while rows and rows[-1].step >= row.step:
                        rows.pop()
                    rows.append(row)
                self.rows = rows


def parse_row(line: bytes) -> MetricsRow | None:
    """None for a torn line, and for one that is no row."""
    try:
        record: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict):
        return None
    step, when = record.pop("step", None), record.pop("time", None)
    if not isinstance(step, int) or not isinstance(when, (int, float)):
        return None
    values = {key: math.nan if v is None else float(v) for key, v in record.items() if v is None or _is_number(v)}
    return MetricsRow(step=step, time=float(when), metrics=values)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
