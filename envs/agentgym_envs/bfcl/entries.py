"""Reads BFCL's multi-turn entries: what users say, the worlds that they begin with, and the calls that are right.

The right calls are Python texts; they are parsed, never evaluated.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from agentgym.errors import UserError, nearest
from agentgym.python_syntax import parse_expression
from agentgym.types import Json, Message
from agentgym_envs.benchmarks.package import BenchmarkPackage

Category: TypeAlias = Literal["base", "miss_param", "miss_func", "long_context"]
T = TypeVar("T", bound=str)
_TYPES: Final = {"dict": "object", "float": "number", "tuple": "array"}  # the package's names of JSON's types


def chosen(given: Sequence[T], known: Sequence[T], environment: str) -> tuple[T, ...]:
    """The categories that are given, each once. Raises UserError for one that is unknown, and for none."""
    for category in given:
        if category not in known:
            raise UserError(f"{environment}: no category {category!r}.{nearest(category, known)}")
    if not given:
        raise UserError(f"{environment}: categories is empty; give some of {', '.join(known)}")
    return tuple(dict.fromkeys(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldCall:
    """One right call as it is written. positional: values without a name, which stand first."""

    name: str
    positional: tuple[Json, ...]
    named: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One conversation. turns, gold: what the user says in each turn, and the calls that it asks for.

    withheld: tools that are added at the beginning of a turn, by its index. classes: the worlds involved.
    """

    entry_id: str
    category: Category
    turns: tuple[tuple[Message, ...], ...]
    gold: tuple[tuple[GoldCall, ...], ...]
    classes: tuple[str, ...]
    initial: Mapping[str, Any]
    withheld: Mapping[int, tuple[str, ...]]


def data_files(package: BenchmarkPackage, category: Category) -> tuple[Path, Path]:
    """The questions and the right calls of a category. Raises UserError when a file is missing."""
    name = f"BFCL_v4_multi_turn_{category}.json"
    return package.file("data", name), package.file("data", "possible_answer", name)


def read_entries(package: BenchmarkPackage, category: Category) -> list[Entry]:
    """Raises UserError that names the file and the row."""
    questions, answers = data_files(package, category)
    gold = {row["id"]: row["ground_truth"] for row in read_rows(answers, ("id", "ground_truth"))}
    entries = []
    for row in read_rows(questions, ("id", "question", "initial_config", "involved_classes")):
        if row["id"] not in gold or len(gold[row["id"]]) != len(row["question"]):
            raise UserError(f"bfcl: {answers} has no right calls for the {len(row['question'])} turns of {row['id']}")
        entries.append(
            Entry(
                entry_id=row["id"],
                category=category,
                turns=tuple(tuple(_message(message) for message in turn) for turn in row["question"]),
                gold=tuple(tuple(read_call(text, answers) for text in turn) for turn in gold[row["id"]]),
                classes=tuple(row["involved_classes"]),
                initial=row["initial_config"],
                withheld={int(turn): tuple(names) for turn, names in row.get("missed_function", {}).items()},
            )
        )
    return entries


def read_call(text: str, source: Path) -> GoldCall:
    """A call such as `cd(folder='a')` with literal values. Raises UserError for anything else."""
    try:
        call = parse_expression(text.strip()).body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            raise ValueError("it is not a call of a function by its name")
        return GoldCall(
            name=call.func.id,
            positional=tuple(_plain(ast.literal_eval(value)) for value in call.args),
            named={str(keyword.arg): _plain(ast.literal_eval(keyword.value)) for keyword in call.keywords},
        )
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"bfcl: {source} has the right call {text!r:.120}, which cannot be read: {error}") from error


def read_functions(path: Path) -> list[Mapping[str, Json]]:
    """The descriptions of one class's functions, with parameters as a JSON schema."""
    return [
        {"name": row["name"], "description": row["description"], "parameters": as_schema(row["parameters"])}
        for row in read_rows(path, ("name", "description", "parameters"))
    ]


def as_schema(described: Mapping[str, Any]) -> dict[str, Any]:
    """The package's description of parameters as a JSON schema."""
    schema = dict(described)
    if "type" in schema:
        schema["type"] = _TYPES.get(schema["type"], schema["type"])
    if schema.get("type") == "any":
        del schema["type"]
    if isinstance(schema.get("items"), Mapping):
        schema["items"] = as_schema(schema["items"])
    if isinstance(schema.get("properties"), Mapping):
        schema["properties"] = {name: as_schema(inner) for name, inner in schema["properties"].items()}
    return schema


def _plain(value: Any) -> Json:
    """What JSON makes of a Python literal: a tuple is a list."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"JSON has no {type(value).__name__}")


def _message(given: Mapping[str, str]) -> Message:
    return cast(Message, {"role": given["role"], "content": given["content"]})


def read_rows(path: Path, fields: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """The rows of a file of JSON lines. Raises UserError for one that is broken or lacks a field."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"bfcl: line {number} of {path} is not JSON: {error}") from error
        missing = [name for name in fields if not isinstance(row, Mapping) or name not in row]
        if missing:
            raise UserError(f"bfcl: line {number} of {path} has no {', '.join(missing)}")
        yield row
