"""Rows about whole programs, judged by what they print: the shapes of APPS, TACO, CodeContests and plain ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from agentgym.sandbox import StdioCase
from agentgym_envs.code_exec.problems import Problem, case_text

Row = Mapping[str, object]

_STATEMENTS = ("prompt", "question", "problem", "description", "text", "question_content")
_TESTS = ("tests", "test_cases", "input_output", "private_tests", "private_test_cases", "generated_tests")
_SHOWN = ("public_tests", "public_test_cases")
_INPUTS, _OUTPUTS = ("inputs", "input", "stdin"), ("outputs", "output", "expected")
_SOLUTIONS = ("solution", "canonical_solution", "code")
_ASK = "Write a Python program that reads its standard input and prints its answer."


def holds_program(row: Row) -> bool:
    """Whether a row has tests by standard input."""
    pairs = any(key in row for key in _INPUTS) and any(key in row for key in _OUTPUTS)
    return pairs or any(row.get(key) for key in (*_TESTS, *_SHOWN))


def program_problem(row: Row, visible: int) -> tuple[str, Problem]:
    """What to ask, and the problem. Raises ValueError for a row of another shape.

    Tests are `inputs` and `outputs` of the row itself, or under `tests`, `input_output` and the like, also as a
    string of JSON: a mapping of two lists, or a list of tests. Those under `public_tests` are the examples;
    without any, the first `visible` are. tolerance: of the row, for numbers in what is printed.
    """
    said = next((row[key] for key in _STATEMENTS if isinstance(row.get(key), str) and row[key]), None)
    if not isinstance(said, str):
        raise ValueError(f"it has no statement; one of {', '.join(_STATEMENTS)} is")
    tolerance = row.get("tolerance") or 0.0
    if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float)) or tolerance < 0:
        raise ValueError(f"tolerance is a number of at least 0, not {tolerance!r}")
    shown = _cases([row.get(key) for key in _SHOWN], float(tolerance))
    own = row if any(row.get(key) is not None for key in _INPUTS) else None
    cases = _cases([own, *(row.get(key) for key in _TESTS)], float(tolerance))
    if not shown:
        seen = min(visible, len(cases) - 1)  # one at least stays hidden
        shown, cases = cases[: max(0, seen)], cases[max(0, seen) :]
    if not cases:
        raise ValueError("it has no hidden test")
    solution = next((row[key] for key in _SOLUTIONS if isinstance(row.get(key), str)), "")
    problem = Problem(entry="", visible=shown, hidden=cases, solution=str(solution))
    examples = "".join(f"\n\n{case_text('', case)}" for case in shown)
    return f"{said.strip()}\n\n{_ASK}{examples}", problem


def _cases(groups: Sequence[object], tolerance: float) -> tuple[StdioCase, ...]:
    return tuple(
        StdioCase(stdin=_text(stdin), expected=_text(expected), tolerance=tolerance)
        for group in groups
        for stdin, expected in _pairs(group)
    )


def _pairs(group: object) -> list[tuple[object, object]]:
    """The inputs with their outputs, of one group of tests."""
    if isinstance(group, str):
        try:
            group = json.loads(group) if group.strip() else None
        except ValueError as error:
            raise ValueError(f"its tests are not valid JSON: {error}") from error
    if group is None:
        return []
    if isinstance(group, Mapping):
        if group.get("fn_name"):
            raise ValueError("its tests call a function; write them as assertions in test_list")
        inputs, outputs = _first(group, _INPUTS), _first(group, _OUTPUTS)
        if isinstance(inputs, str) and isinstance(outputs, str):
            return [(inputs, outputs)]
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            raise ValueError("tests have as many inputs as outputs, in two lists")
        return list(zip(inputs, outputs, strict=True))
    if isinstance(group, Sequence):
        return [pair for test in group for pair in _pairs(test if isinstance(test, Mapping) else {})]
    raise ValueError(f"tests are a list or a mapping, not {type(group).__name__}")


def _first(group: Mapping[str, object], keys: Sequence[str]) -> object:
    return next((group[key] for key in keys if group.get(key) is not None), None)


def _text(value: object) -> str:
    """A test's input or output; some data sets have it as a list of lines."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    raise ValueError(f"what a program reads and prints is text, not {value!r}")
