"""The metrics of a run as they are appended: read on from where the last look ended."""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentgym.runs.folder import MetricsRow


@dataclass(slots=True)
class MetricsLog:
    """One `metrics.jsonl`. rows: one a step, in order; where a resumed run repeated steps, the later rows count.

    offset: bytes of whole lines that were read. rewrites: how often the file was replaced by another.
    """

    path: Path
    rows: list[MetricsRow] = field(default_factory=list)
    offset: int = 0
    rewrites: int = 0
    _inode: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> list[MetricsRow]:
        """All rows so far; the list is not changed afterwards."""
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    found = os.fstat(file.fileno())
                    if found.st_ino != self._inode or found.st_size < self.offset:
                        self.rewrites += self._inode != 0
                        self.rows, self.offset, self._inode = [], 0, found.st_ino
                    if found.st_size == self.offset:
                        return self.rows
                    file.seek(self.offset)
                    data = file.read()
            except OSError:
                return self.rows
            whole = data[: data.rfind(b"\n") + 1]
            self.offset += len(whole)
            self.rows = _joined(self.rows, whole)
            return self.rows


def _joined(rows: list[MetricsRow], data: bytes) -> list[MetricsRow]:
    rows = [*rows]
    for line in data.splitlines():
        if (row := parse_row(line)) is not None:
            while rows and rows[-1].step >= row.step:
                rows.pop()
            rows.append(row)
    return rows


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
