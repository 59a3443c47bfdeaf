"""A programming problem with its cases, and its JSON form inside `Task.answer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentgym.sandbox import AssertCase, CallCase, Case, StdioCase
from agentgym.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a solution must do. The agent may know `visible`; `hidden` and `solution` it never sees.

    entry: the function's or class's name; empty for a program. prelude: source that the tests' side runs first.
    opening: source that is put before what the agent writes.
    """

    entry: str
    visible: tuple[Case, ...]
    hidden: tuple[Case, ...]
    prelude: str = ""
    solution: str = ""
    opening: str = ""

    @property
    def cases(self) -> tuple[Case, ...]:
        """Visible cases first, so that `results[: len(visible)]` are theirs."""
        return self.visible + self.hidden

    def to_json(self) -> Json:
        return {
            "entry": self.entry,
            "visible": [_case_to_json(case) for case in self.visible],
            "hidden": [_case_to_json(case) for case in self.hidden],
            "prelude": self.prelude,
            "solution": self.solution,
            **({"opening": self.opening} if self.opening else {}),
        }

    @classmethod
    def from_json(cls, data: Json) -> Problem:
        """Raises ValueError for what `to_json` did not write."""
        if not isinstance(data, Mapping):
            raise ValueError(f"a problem is a JSON object, not {type(data).__name__}")
        return cls(
            entry=_text(data, "entry"),
            visible=_cases(data, "visible"),
            hidden=_cases(data, "hidden"),
            prelude=_text(data, "prelude"),
            solution=_text(data, "solution"),
            opening=_text(data, "opening") if "opening" in data else "",
        )


def idle_solution(entry: str) -> str:
    """A function that does nothing, or a class of whose methods one does."""
    owner, dot, method = entry.partition(".")
    if dot:
        return f"class {owner}:\n    def {method}(self, *args, **kwargs):\n        pass\n"
    return f"def {owner}(*args, **kwargs):\n    pass\n"


def call_text(entry: str, case: CallCase) -> str:
    """The call as a person writes it: `f([3, 1])`."""
    words = [repr(value) for value in case.args]
    words += [f"{name}={value!r}" for name, value in case.kwargs]
    return f"{entry}({', '.join(words)})"


def case_text(entry: str, case: Case) -> str:
    """The case as an example: `f([3, 1]) == [1, 3]`, the assertion's source, or input and output."""
    if isinstance(case, CallCase):
        return f"{call_text(entry, case)} == {case.expected!r}"
    if isinstance(case, StdioCase):
        return f"Input:\n{case.stdin.rstrip()}\nOutput:\n{case.expected.rstrip()}"
    return case.source.strip()


def _case_to_json(case: Case) -> Json:
    if isinstance(case, AssertCase):
        return {"assert": case.source}
    if isinstance(case, StdioCase):
        return {"stdin": case.stdin, "expected": case.expected, "tolerance": case.tolerance}
    if case.kwargs:
        raise ValueError("cases with keyword arguments have no JSON form; write them as assertions")
    args = [_plain(value) for value in case.args]
    return {"args": args, "expected": _plain(case.expected), "tolerance": case.tolerance}


def _plain(value: object) -> Json:
    """The value, if JSON gives it back with the same types; a tuple would come back as a list."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_plain(part) for part in value]
    raise ValueError(f"{value!r} has no JSON form; write the case as an assertion")


def _text(data: Mapping[str, Json], key: str) -> str:
    value = data.get(key)
    if not isinstance(value, str):
        raise ValueError(f"a problem's {key!r} is a string, not {value!r}")
    return value


def _cases(data: Mapping[str, Json], key: str) -> tuple[Case, ...]:
    rows = data.get(key)
    if not isinstance(rows, Sequence) or isinstance(rows, str):
        raise ValueError(f"a problem's {key!r} is a list of cases, not {rows!r}")
    return tuple(_case_from_json(row) for row in rows)


def _case_from_json(row: Json) -> Case:
    if isinstance(row, Mapping):
        statement, arguments, tolerance = row.get("assert"), row.get("args"), row.get("tolerance", 0.0)
        if isinstance(statement, str):
            return AssertCase(source=statement)
        stdin, expected = row.get("stdin"), row.get("expected")
        if isinstance(stdin, str) and isinstance(expected, str) and isinstance(tolerance, (int, float)):
            return StdioCase(stdin=stdin, expected=expected, tolerance=float(tolerance))
        if isinstance(arguments, Sequence) and isinstance(tolerance, (int, float)) and "expected" in row:
            return CallCase(args=tuple(arguments), expected=row["expected"], tolerance=float(tolerance))
    raise ValueError(f"a case is {{'args', 'expected'}}, {{'stdin', 'expected'}} or {{'assert'}}, not {row!r}")
