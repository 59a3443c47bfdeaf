"""Compares what a solution answered with what was expected, and says the difference in words.

Every backend uses it, so the same case reads the same in each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.errors import InfraError, UserError
from agentgym.python_syntax import parse_module
from agentgym.sandbox import AssertCase, CallCase, Case, CaseResult, LimitHit, RunStatus, Verdict
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.values import Tree
from agentgym_sandboxes.host.trees import MAX_VALUE_CHARS, render, same
from agentgym_sandboxes.host.wording import NOT_REACHED, Raised, error_text, one_line, raised_text

# Each text can be matched in one way only, so that a hostile one takes no longer.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NO_PYTHON = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, slots=True)
class Returned:
    """left: the positional arguments after the call, where a case asks for them."""

    tree: Tree
    left: Returned | NoValue | None = None


@dataclass(frozen=True, slots=True)
class NoValue:
    """It returned what is not a plain value; `kind` is its type."""

    kind: str


Answer: TypeAlias = Returned | NoValue | Raised


@dataclass(frozen=True, slots=True)
class End:
    """How a solution's process ended: text is what is said of the case that it left unanswered."""

    status: RunStatus
    text: str
    limit: LimitHit | None = None


def question(case: CallCase) -> list[Tree]:
    """What a solution is asked: [args, kwargs, whether to read an iterator, whether to report the
    arguments after the call]. Raises UserError when they are not plain values."""
    args, kwargs = _encoded(case.args, "passes"), _encoded(dict(case.kwargs), "passes")
    _encoded(case.expected, "expects")
    _encoded(case.expected_args, "expects")
    return [args, kwargs, case.as_list, case.expected_args is not None]


def _encoded(value: object, verb: str) -> Tree:
    try:
        return values.encode(value)
    except values.NotPlain as error:
        raise UserError(f"a case {verb} a {error.kind}; cases hold plain builtin values only") from error


def judge_call(case: CallCase, answer: Answer) -> CaseResult:
    """How a call case went."""
    if isinstance(answer, Raised):
        return CaseResult(passed=False, error=raised_text(answer))
    error = _difference("returned", answer, _encoded(case.expected, "expects"), case.tolerance)
    if not error and isinstance(answer, Returned) and case.expected_args is not None:
        left = answer.left or NoValue("nothing")
        error = _difference("left its arguments", left, _encoded(case.expected_args, "expects"), case.tolerance)
    return CaseResult(passed=not error, error=error)


def _difference(verb: str, answer: Returned | NoValue, expected: Tree, tolerance: float) -> str:
    """'returned 3, expected 4'; empty when they agree."""
    if isinstance(answer, NoValue):
        return f"{verb} <{one_line(answer.kind, MAX_VALUE_CHARS)}>, expected {render(expected)}"
    try:
        if same(answer.tree, expected, tolerance):
            return ""
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
        pass  # no tree of ours: the solution wrote it by hand
    return f"{verb} {render(answer.tree)}, expected {render(expected)}"


def judge_assert(case: AssertCase, raised: Raised | None) -> CaseResult:
    """How an assert case went; None: it raised nothing. Raises InfraError for a test that can't be run at all."""
    if raised is None:
        return CaseResult(passed=True)
    if raised.kind in _NO_PYTHON and not _parses(case.source):  # else the solution raised it, or is made to
        raise InfraError(f"a test can't be compiled: {error_text(raised)}")
    if raised.kind != "AssertionError":
        return CaseResult(passed=False, error=raised_text(raised))
    lines = case.source.splitlines()
    said = raised.message or (lines[raised.line - 1] if 0 < raised.line <= len(lines) else "")
    said = one_line(said, MAX_VALUE_CHARS)
    return CaseResult(passed=False, error=f"assertion failed: {said}" if said else "assertion failed")


def _parses(source: str) -> bool:
    try:
        parse_module(source)
    except (SyntaxError, ValueError):
        return False
    return True


def load_failure(cases: Sequence[Case], raised: Raised, wall_s: float) -> Verdict:
    """The verdict on a solution that could not be loaded: no case was reached."""
    error = error_text(raised)
    results = tuple(CaseResult(passed=False, error=error) for _ in cases)
    return Verdict(status=RunStatus.ERROR, results=results, error=error, wall_s=wall_s)


def assemble(
    cases: Sequence[Case], answers: Iterable[Answer], failures: Iterable[Raised | None], end: End, *, wall_s: float
) -> Verdict:
    """The verdict on a solution that was loaded.

    answers: to the call cases, in order; failures: of the assert cases. When there are fewer than cases, the
    first without one is the case that ended it, as `end` says, and the later ones were not reached.
    """
    called, asserted = iter(answers), iter(failures)
    results: list[CaseResult] = []
    error = ""
    for case in cases:
        try:
            if isinstance(case, CallCase):
                result = judge_call(case, next(called))
            elif isinstance(case, AssertCase):
                result = judge_assert(case, next(asserted))
            else:
                raise AssertionError("programs are graded one by one, by `grade_programs`")
        except StopIteration:
            result = CaseResult(passed=False, error=NOT_REACHED if error else end.text)
            error = end.text
        results.append(result)
    ended = bool(error) or end.status is RunStatus.UNSUPPORTED
    return Verdict(
        status=end.status if ended else RunStatus.OK,
        results=tuple(results),
        error=error,
        wall_s=wall_s,
        limit=end.limit if ended else None,
    )


def output_difference(printed: str, expected: str, tolerance: float) -> str:
    """'printed '3', expected '4''; empty when they agree, as `StdioCase` says. Of long outputs, the first line that
    differs."""
    got, wanted = _lines(printed), _lines(expected)
    line = _first_difference(got, wanted, tolerance)
    if line is None:
        return ""
    whole, whole_wanted = "\n".join(got), "\n".join(wanted)
    if max(len(whole), len(whole_wanted)) <= MAX_VALUE_CHARS:
        return f"printed {whole!r}, expected {whole_wanted!r}"
    shown, shown_wanted = (
        render(lines[line], MAX_VALUE_CHARS) if line < len(lines) else "nothing more" for lines in (got, wanted)
    )
    return f"printed {shown} on line {line + 1}, expected {shown_wanted}"


def _lines(text: str) -> list[str]:
    lines = [line.rstrip() for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def _first_difference(got: list[str], wanted: list[str], tolerance: float) -> int | None:
    for index, (line, wanted_line) in enumerate(zip(got, wanted, strict=False)):
        if line != wanted_line and not (tolerance > 0 and _near(line, wanted_line, tolerance)):
            return index
    return None if len(got) == len(wanted) else min(len(got), len(wanted))


def _near(line: str, wanted: str, tolerance: float) -> bool:
    words, wanted_words = line.split(), wanted.split()
    return len(words) == len(wanted_words) and all(
        word == wanted_word
        or (
            _NUMBER.fullmatch(word) is not None
            and _NUMBER.fullmatch(wanted_word) is not None
            and math.isclose(float(word), float(wanted_word), rel_tol=tolerance, abs_tol=tolerance)
        )
        for word, wanted_word in zip(words, wanted_words, strict=True)
    )
