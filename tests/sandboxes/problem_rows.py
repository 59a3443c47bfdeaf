"""Our own problems, in HumanEval's shape, extended by what our cases can do.

A row's `cases` hold calls (`args`, `kwargs`, `expected`, `after`: Python expressions of our own; `tolerance`,
`as_list`), assertions (`assert`) or programs (`stdin`, `expected`, `tolerance`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentgym.sandbox import AssertCase, CallCase, Case, GradeRequest, Limits, StdioCase

PATH = Path(__file__).parent.parent / "data" / "problems.jsonl"
LIMITS = Limits(wall_s=20.0, cpu_s=15)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnProblem:
    name: str
    entry: str
    prelude: str
    cases: tuple[Case, ...]
    canonical: str
    wrong: tuple[str, ...]

    def request(self, code: str) -> GradeRequest:
        return GradeRequest(code=code, entry=self.entry, cases=self.cases, prelude=self.prelude, limits=LIMITS)


def read_problems() -> list[OwnProblem]:
    return [_problem(json.loads(line)) for line in PATH.read_text(encoding="utf-8").splitlines()]


def _problem(row: Mapping[str, object]) -> OwnProblem:
    prompt, cases, wrong = row["prompt"], row["cases"], row["wrong_solutions"]
    assert isinstance(prompt, str) and isinstance(cases, list) and isinstance(wrong, list)
    found = [_case(case) for case in cases]
    if row["test"]:
        found.append(AssertCase(source=f"{row['test']}\ncheck(candidate)"))
    return OwnProblem(
        name=str(row["name"]),
        entry=str(row["entry_point"]),
        prelude=prompt,
        cases=tuple(found),
        canonical=f"{prompt}{row['canonical_solution']}",
        wrong=tuple(wrong),
    )


def _case(row: Mapping[str, object]) -> Case:
    tolerance = float(str(row.get("tolerance", 0.0)))
    if "assert" in row:
        return AssertCase(source=str(row["assert"]))
    if "stdin" in row:
        return StdioCase(stdin=str(row["stdin"]), expected=str(row["expected"]), tolerance=tolerance)
    value = {name: eval(str(row[name])) for name in ("args", "kwargs", "expected", "after") if name in row}
    return CallCase(
        args=value["args"],
        kwargs=tuple(value.get("kwargs", {}).items()),
        expected=value["expected"],
        expected_args=value.get("after"),
        tolerance=tolerance,
        as_list=bool(row.get("as_list")),
    )
