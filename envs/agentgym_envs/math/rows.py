"""Reads GSM8K-shaped data: rows with a question, and an answer that ends with `#### 42`."""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Final

from agentgym.errors import UserError
from agentgym.types import Split
from agentgym_envs.math.answers import Number, find_answer, parse_number

_SHAPE: Final = 'a row is {"question": text, "answer": text that is a number or ends with "#### number"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A question with its verified answer. key: a hash of the question."""

    key: str
    question: str
    answer: Number


def read_jsonl(path: Path) -> list[Row]:
    """Raises UserError that names the file and line."""
    try:
        lines = _existing(path).read_text(encoding="utf-8").splitlines()
        return _rows((json.loads(line) for line in lines if line.strip()), str(path))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"math: {path} is not a JSONL file: {error}; {_SHAPE}") from error


def read_parquet(path: Path) -> list[Row]:
    """Raises UserError for a file that cannot be read, or when the package `datasets` is missing."""
    datasets = _datasets()
    _existing(path)
    try:
        table = datasets.Dataset.from_parquet(str(path))
    except Exception as error:  # pyarrow and datasets raise many kinds
        raise UserError(f"math: {path} is not a parquet file: {error}") from error
    return _rows(table, str(path))


def read_hub(name: str, subset: str, split: Split) -> list[Row]:
    """A data set of the Hugging Face hub, or of its local cache. Raises UserError when it is unavailable."""
    datasets = _datasets()
    try:
        table = datasets.load_dataset(name, subset or None, split=split)
    except Exception as error:  # network, names and permissions raise many kinds
        raise UserError(
            f"math: the data set {name!r} (subset {subset!r}, split {split!r}) cannot be loaded: {error}"
        ) from error
    return _rows(table, name)


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


def _rows(records: Iterable[Mapping[str, object]], source: str) -> list[Row]:
    rows = {}
    for index, record in enumerate(records, start=1):
        if not isinstance(record, Mapping):
            raise UserError(f"math: row {index} of {source} is {record!r:.80}; {_SHAPE}")
        question, answer = record.get("question"), record.get("answer")
        if not isinstance(question, str) or not question.strip():
            raise UserError(f"math: row {index} of {source} has no question; {_SHAPE}")
        number = _answer(answer)
        if number is None:
            raise UserError(f"math: row {index} of {source} has the answer {answer!r:.80}; {_SHAPE}")
        key = _hash(" ".join(question.split()))
        rows[key] = Row(key=key, question=question.strip(), answer=number)
    if not rows:
        raise UserError(f"math: {source} holds no row")
    return list(rows.values())


def _answer(answer: object) -> Number | None:
    text = str(answer) if isinstance(answer, (str, int, float)) else ""
    return find_answer(text).number if "####" in text else parse_number(text)


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"math: there is no file {path}")
    return path


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _datasets() -> ModuleType:
    try:
        datasets = importlib.import_module("datasets")  # takes seconds, so only when it is asked for
    except ImportError as error:
        raise UserError("math: this source needs the package `datasets`: pip install agentgym[data]") from error
    return datasets
