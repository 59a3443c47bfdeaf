"""Reads questions from files and the hub: GSM8K-shaped rows, and MATH's with a boxed answer in their solution."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Final

from agentgym import data_sets
from agentgym.errors import UserError
from agentgym.types import Split
from agentgym_envs.math.answers import boxed, find_answer
from agentgym_envs.math.number import Number, parse_number

log = logging.getLogger(__name__)

SHAPES: Final = (
    'a row is {"question": text, "answer": a number, or text that ends with "#### number"}, '
    'or {"problem": text, "solution": text with \\boxed{answer}, "level" and "type" if there are any}'
)
_NAMED: Final = 5  # bad rows that a report names
Record = tuple[str, object]  # where it is, and a decoded row or a ValueError


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question with its verified answer. key: a hash of the question.

    answer: an exact number, or, of MATH, LaTeX. stated: the number as the row has it, with its unit. solution: how to
    find it, if the row says. level: 0 if it says none.
    """

    key: str
    question: str
    answer: Number | str
    stated: str = ""
    solution: str = ""
    level: int = 0
    kind: str = ""


def read_rows(source: str, path: str, subset: str, split: Split, max_bad_share: float) -> list[Row]:
    """The rows of a file (jsonl, json, parquet), a folder of json files, or a data set of the hub.

    A row that is of no known shape is named in the log and left out. Raises UserError with a report when they are more
    than `max_bad_share` of all, when none is left, and for what can't be read at all.
    """
    readers = {"jsonl": _jsonl, "json": _json, "parquet": _parquet}
    records = list(_hub(path, subset, split) if source == "hub" else readers[source](_existing(Path(path))))
    rows: dict[str, Row] = {}
    bad: list[str] = []
    for place, record in records:
        try:
            row = _row(record)
        except ValueError as error:
            bad.append(f"{place} {error}")
        else:
            rows[row.key] = row
    if not records:
        raise UserError(f"math: {path} holds no row")
    if bad:
        named = "; ".join(bad[:_NAMED]) + (f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
        report = f"{len(bad)} of {len(records)} rows of {path} can't be used: {named}"
        if len(bad) > max_bad_share * len(records):
            raise UserError(f"math: {report}. That is more than max_bad_share {max_bad_share:g}; {SHAPES}")
        log.warning("math: left out %s", report)
    return list(rows.values())


def split_rows(rows: list[Row], split: Split, test_share: float) -> list[Row]:
    """The rows of one split, by the hash of their questions; no question is in both."""
    border = int(test_share * 16**8)
    return [row for row in rows if (int(row.key[:8], 16) < border) == (split == "test")]


def in_order(rows: list[Row], split: Split, seed: int) -> Iterator[Row]:
    """Each row once in an order that the seed fixes; train repeats them forever, each time in another order."""
    assert rows
    for epoch in count():
        yield from sorted(rows, key=lambda row: _hash(f"{seed}/{epoch}/{row.key}"))
        if split == "test":
            return


def _row(record: object) -> Row:
    """Raises ValueError that says what is wrong with it."""
    if isinstance(record, ValueError):
        raise record
    if not isinstance(record, Mapping):
        raise ValueError(f"is {record!r:.80}, not an object")
    question = record.get("question", record.get("problem"))
    if not isinstance(question, str) or not question.strip():
        raise ValueError("has no question")
    question = question.strip()
    key = _hash(" ".join(question.split()))
    if isinstance(solution := record.get("solution"), str):
        answer = boxed(solution)
        if answer is None and isinstance(stated := record.get("answer"), str):
            answer = stated
        if not answer or not answer.strip():
            raise ValueError("has a solution without \\boxed{answer}")
        level = re.search(r"[1-9]", str(record.get("level", "")))
        kind = str(record.get("type", record.get("subject", "")))
        return Row(
            key=key,
            question=question,
            answer=answer.strip(),
            solution=solution.strip(),
            level=int(level[0]) if level else 0,
            kind=kind,
        )
    stated = record.get("answer")
    number = _number(stated)
    if number is None:
        raise ValueError(f"has the answer {stated!r:.80}")
    text = str(stated)
    return Row(key=key, question=question, answer=number, stated=text.rpartition("####")[2].strip(), solution=text)


def _number(answer: object) -> Number | None:
    text = str(answer) if isinstance(answer, (str, int, float)) else ""
    return find_answer(text).number if "####" in text else parse_number(text)


def _jsonl(path: Path) -> Iterator[Record]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):  # by bytes: a text's own U+2028 ends no line
            if line.strip():
                yield f"row {number}", _decoded(line)


def _json(path: Path) -> Iterator[Record]:
    """A list of rows, or a folder with a row in each file, at any depth."""
    if path.is_dir():
        for file in sorted(path.rglob("*.json")):
            yield str(file.relative_to(path)), _decoded(file.read_bytes())
        return
    rows = _decoded(path.read_bytes())
    if not isinstance(rows, list):
        raise UserError(f"math: {path} is not a JSON list of rows{f': {rows}' if isinstance(rows, ValueError) else ''}")
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _decoded(data: bytes) -> object:
    try:
        row: object = json.loads(data)
    except (ValueError, RecursionError) as error:
        return ValueError(f"is not JSON: {error}")
    return row


def _parquet(path: Path) -> Iterator[Record]:
    datasets = data_sets.package("math")
    with data_sets.readable(f"math: the parquet file {path}"):
        table = datasets.Dataset.from_parquet(str(path))
    return _numbered(table)


def _hub(name: str, subset: str, split: Split) -> Iterator[Record]:
    """A data set of the Hugging Face hub, or of its local cache."""
    own = (
        "rows of your own: --env.options.source jsonl (or parquet, json) --env.options.path FILE, or --data FILE of "
        "`agentgym benchmark`"
    )
    return _numbered(data_sets.load(name, subset or None, split=split, who="math", advice=own))


def _numbered(table: Iterable[object]) -> Iterator[Record]:
    return ((f"row {number}", row) for number, row in enumerate(table, start=1))


def _existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"math: there is no file {path}")
    return path


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
