"""Compares what a solution answered with what was expected, and says the difference in words.

Every backend uses it, so the same case reads the same in each. Answers are trees of the value codec: they come
from untrusted code, so nothing here hashes them or follows them deeper than the expected value goes.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.errors import UserError
from agentgym.sandbox import AssertCase, CallCase, Case, CaseResult, RunStatus, Verdict
from agentgym_sandboxes.docker.agent import values
from agentgym_sandboxes.docker.agent.values import Tree
from agentgym_sandboxes.wording import NOT_REACHED, Raised, cut, error_text, raised_text

MAX_VALUE_CHARS = 80
_BRACKETS = {"l": ("[", "]"), "t": ("(", ")"), "s": ("{", "}"), "z": ("frozenset({", "})"), "d": ("{", "}")}


@dataclass(frozen=True, slots=True)
class Returned:
    tree: Tree


@dataclass(frozen=True, slots=True)
class NoValue:
    """It returned what is no plain value; `kind` is its type."""

    kind: str


Answer: TypeAlias = Returned | NoValue | Raised


def question(case: CallCase) -> list[Tree]:
    """A call's arguments, [args, kwargs]. Raises UserError when they are no plain values."""
    try:
        return [values.encode(list(case.args)), values.encode(dict(case.kwargs))]
    except values.NotPlain as error:
        raise UserError(f"a case passes a {error.kind}; cases hold plain builtin values only") from error


def judge_call(case: CallCase, answer: Answer) -> CaseResult:
    """How a call case went."""
    if isinstance(answer, Raised):
        return CaseResult(passed=False, error=raised_text(answer))
    try:
        expected = values.encode(case.expected)
    except values.NotPlain as error:
        raise UserError(f"a case expects a {error.kind}; cases hold plain builtin values only") from error
    if isinstance(answer, NoValue):
        return CaseResult(
            passed=False, error=f"returned <{cut(answer.kind, MAX_VALUE_CHARS)}>, expected {render(expected)}"
        )
    try:
        passed = same(answer.tree, expected, case.tolerance)
    except (ValueError, TypeError, RecursionError):  # no tree of ours: the solution wrote it by hand
        passed = False
    if passed:
        return CaseResult(passed=True)
    return CaseResult(passed=False, error=f"returned {render(answer.tree)}, expected {render(expected)}")


def judge_assert(case: AssertCase, raised: Raised | None) -> CaseResult:
    """How an assert case went; None: it raised nothing."""
    if raised is None:
        return CaseResult(passed=True)
    if raised.kind != "AssertionError":
        return CaseResult(passed=False, error=raised_text(raised))
    lines = case.source.splitlines()
    said = raised.message or (lines[raised.line - 1] if 0 < raised.line <= len(lines) else "")
    said = cut(" ".join(said.split()), MAX_VALUE_CHARS)
    return CaseResult(passed=False, error=f"assertion failed: {said}" if said else "assertion failed")


def load_failure(cases: Sequence[Case], raised: Raised, wall_s: float) -> Verdict:
    """The verdict on a solution that could not be loaded: no case was reached."""
    error = error_text(raised)
    results = tuple(CaseResult(passed=False, error=error) for _ in cases)
    return Verdict(status=RunStatus.ERROR, results=results, error=error, wall_s=wall_s)


def assemble(
    cases: Sequence[Case],
    answers: Iterable[Answer],
    failures: Iterable[Raised | None],
    *,
    ended: RunStatus,
    ended_text: str,
    wall_s: float,
) -> Verdict:
    """The verdict on a solution that was loaded.

    answers: to the call cases, in order; failures: of the assert cases. When there are fewer than cases, the
    first without one is the case that `ended` it, as `ended_text` says, and the later ones were not reached.
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
                raise UserError("cases by standard input don't mix with calls and assertions")
        except StopIteration:
            result = CaseResult(passed=False, error=NOT_REACHED if error else ended_text)
            error = ended_text
        results.append(result)
    status = ended if error or ended is RunStatus.UNSUPPORTED else RunStatus.OK
    return Verdict(status=status, results=tuple(results), error=error, wall_s=wall_s)


def same(got: Tree, expected: Tree, tolerance: float = 0.0) -> bool:
    """Whether two trees are equal values of equal types. nan equals nan; sets are compared exactly."""
    if type(got) is not type(expected):
        return False
    if isinstance(expected, float):
        assert isinstance(got, float)
        if got == expected or (math.isnan(got) and math.isnan(expected)):
            return True
        return tolerance > 0 and math.isclose(got, expected, rel_tol=tolerance, abs_tol=tolerance)
    if not isinstance(expected, list):
        return got == expected
    assert isinstance(got, list)
    if len(got) != len(expected) or got[0] != expected[0]:
        return False
    if expected[0] in ("s", "z"):
        return sorted(_texts(got[1:])) == sorted(_texts(expected[1:]))
    if expected[0] == "d":
        given = dict(zip(_texts(got[1::2]), got[2::2], strict=True))
        wanted = dict(zip(_texts(expected[1::2]), expected[2::2], strict=True))
        return given.keys() == wanted.keys() and all(same(given[k], wanted[k], tolerance) for k in wanted)
    return all(same(a, b, tolerance) for a, b in zip(got[1:], expected[1:], strict=True))


def render(tree: Tree, max_chars: int = MAX_VALUE_CHARS) -> str:
    """What `repr` would show of the value, cut; it stops as soon as there is enough."""
    pieces: list[str] = []
    with contextlib.suppress(_Enough):
        _render(tree, pieces, [max_chars + 1])
    return cut("".join(pieces), max_chars)


class _Enough(Exception):
    """The text is long enough."""


def _render(tree: Tree, pieces: list[str], room: list[int]) -> None:
    if not isinstance(tree, list):
        _put(repr(tree[: room[0]] if isinstance(tree, str) else tree), pieces, room)
        return
    tag, items = (tree[0] if tree else None), tree[1:]
    if tag not in _BRACKETS:
        _put(_scalar(tag, items), pieces, room)
        return
    if not items and tag in ("s", "z"):
        _put("set()" if tag == "s" else "frozenset()", pieces, room)
        return
    left, right = _BRACKETS[str(tag)]
    _put(left, pieces, room)
    for index, item in enumerate(items):
        if index:
            _put(": " if tag == "d" and index % 2 else ", ", pieces, room)
        _render(item, pieces, room)
    _put("," + right if tag == "t" and len(items) == 1 else right, pieces, room)


def _scalar(tag: Tree, items: list[Tree]) -> str:
    if tag == "i" and len(str(items[0])) > 3000:
        return f"<an int of about {4 * len(str(items[0]))} bits>"
    try:
        value = values.decode([tag, *items])
    except (ValueError, TypeError):
        return "<garbage>"
    return repr(value)


def _put(text: str, pieces: list[str], room: list[int]) -> None:
    pieces.append(text)
    room[0] -= len(text)
    if room[0] <= 0:
        raise _Enough


def _texts(trees: list[Tree]) -> list[str]:
    return [values.text(tree) for tree in trees]
