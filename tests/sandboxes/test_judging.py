"""Comparing answers and wording the difference; the answers here are as a hostile process would write them."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.sandbox import AssertCase, CallCase, RunStatus
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.host import judging
from agentgym_sandboxes.host.judging import NoValue, Returned
from agentgym_sandboxes.host.wording import Raised, error_text, exit_text

simple = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.integers(), inner, max_size=3) | st.tuples(inner),
    max_leaves=10,
)


def outcome(answer: judging.Answer, expected: object) -> str:
    return judging.judge_call(CallCase(args=(), expected=expected), answer).error


@given(simple)
def test_a_value_is_rendered_as_repr_does(value: object) -> None:
    assert judging.render(values.encode(value), max_chars=10_000) == repr(value)


@given(simple, st.integers(4, 30))
def test_a_rendering_is_cut(value: object, max_chars: int) -> None:
    shown, full = judging.render(values.encode(value), max_chars), repr(value)
    assert shown == full if len(full) <= max_chars else shown == full[: max_chars - 3] + "..."


def test_garbage_for_a_tree_is_a_failed_case() -> None:
    deep: values.Tree = 1
    for _ in range(100_000):
        deep = ["l", deep]
    for tree in (["d", 1, 2, 3], ["d", ["?"], 1], ["?"], [], ["s", deep], ["i", "zz"], deep, {"a": 1}):
        for expected in ({1: 2}, {3: 4, 5: 6}, {1}, [[1]], 2**80):
            assert outcome(Returned(tree), expected).startswith("returned ")


def test_huge_answers_are_worded_shortly() -> None:
    assert len(outcome(Returned(["i", "0x" + "f" * 100_000]), 1)) < 200
    assert len(outcome(Returned("x" * 100_000), "y" * 100_000)) < 200
    assert len(outcome(Raised("E" * 100, "m" * 100_000), 1)) < 350


def test_an_answer_that_has_no_value_names_its_type() -> None:
    assert outcome(NoValue("generator"), [1]) == "returned <generator>, expected [1]"


def test_an_assertion_shows_its_line() -> None:
    case = AssertCase(source="x = 1\nassert  f(x) ==\t2\n")
    raised = Raised("AssertionError", "", 2)
    assert judging.judge_assert(case, raised).error == "assertion failed: assert f(x) == 2"
    assert judging.judge_assert(case, Raised("AssertionError", "", 9)).error == "assertion failed"


def test_cases_without_an_answer_fail() -> None:
    cases = [CallCase(args=(), expected=1), AssertCase(source=""), CallCase(args=(), expected=1), AssertCase(source="")]
    verdict = judging.assemble(cases, [Returned(1)], [], judging.End(RunStatus.OOM, "why"), wall_s=0.0)
    assert [result.error for result in verdict.results] == ["", "why", "not reached", "not reached"]
    assert (verdict.status, verdict.error) == (RunStatus.OOM, "why")


@pytest.mark.parametrize(
    ("kind", "message", "text"),
    [
        ("ZeroDivisionError", "integer division or modulo by zero", "ZeroDivisionError: division by zero"),
        ("ZeroDivisionError", "float floor division by zero", "ZeroDivisionError: division by zero"),
        ("ZeroDivisionError", "my own words", "ZeroDivisionError: my own words"),
        ("KeyError", "'-7'", "KeyError: -7"),
        ("KeyError", "'k'", "KeyError: 'k'"),
        ("MemoryError", "anything", "MemoryError"),
    ],
)
def test_interpreters_are_brought_to_one_wording(kind: str, message: str, text: str) -> None:
    assert error_text(Raised(kind, message)) == text


def test_a_process_that_was_killed_is_named_by_its_signal() -> None:
    assert exit_text(-11) == "its process was ended by SIGSEGV"
    assert exit_text(3) == "its process ended with exit code 3 before it returned"


def tree_answer(value: object, left: object = None) -> judging.Returned:
    return Returned(values.encode(value), None if left is None else Returned(values.encode(left)))


def test_arguments_are_compared_after_the_result() -> None:
    case = CallCase(args=([2, 1],), expected=None, expected_args=([1, 2],))
    assert judging.judge_call(case, tree_answer(None, ([1, 2],))).passed
    assert judging.judge_call(case, tree_answer(None, ([2, 1],))).error == (
        "left its arguments ([2, 1],), expected ([1, 2],)"
    )
    assert judging.judge_call(case, tree_answer(3, ([1, 2],))).error == "returned 3, expected None"
    assert judging.judge_call(case, tree_answer(None)).error == ("left its arguments <nothing>, expected ([1, 2],)")
    unread = Returned(None, NoValue("socket"))
    assert judging.judge_call(case, unread).error == "left its arguments <socket>, expected ([1, 2],)"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (range(0), range(1, 1), True),
        (range(0, 3, 2), range(0, 4, 2), True),
        (range(3), range(4), False),
        (Decimal("1.0"), Decimal("1.00"), True),
        (Decimal("NaN"), Decimal("NaN"), True),
        (Decimal(1), Decimal(2), False),
        (Decimal(1), 1, False),
        (defaultdict(int, {1: 2}), defaultdict(list, {1: 2}), True),
        (defaultdict(int, {1: 2}), {1: 2}, False),
        (deque([1], 3), deque([1]), True),
        (deque([1], 3), deque([2], 3), False),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1), False),
        (Counter("ab"), Counter("ba"), True),
        (Counter("ab"), Counter("abb"), False),
        (Counter(a=1, b=0), Counter("a"), True),
        (Counter(a=1, b=-1), Counter("a"), False),
        ({-0.0}, {0.0}, True),
        ({(1, -0.0): 2}, {(1, 0.0): 2}, True),
        ("\ud83d\ude00", "\U0001f600", False),
        (bytearray(b"a"), b"a", False),
    ],
)
def test_library_values_are_compared_as_python_does_but_for_their_type(one: object, other: object, same: bool) -> None:
    assert judging.same(values.encode(one), values.encode(other)) is same
    assert judging.same(values.encode([other]), values.encode([one])) is same


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (range(3), "range(0, 3)"),
        (Counter(a=2), "Counter({'a': 2})"),
        (deque([1, 2]), "deque([1, 2])"),
        (OrderedDict(a=1), "OrderedDict({'a': 1})"),
        (defaultdict(int, {1: 2}), "defaultdict(None, {1: 2})"),
        (Fraction(1, 3), "Fraction(1, 3)"),
        (bytearray(b"x"), "bytearray(b'x')"),
        (b"ab" * 1000, "b'" + "ab" * 37 + "a..."),
        (Fraction(1, 10**5000), "<a long value>"),
        (int, "<class 'int'>"),
    ],
)
def test_library_values_are_shown_as_python_does(value: object, text: str) -> None:
    assert judging.render(values.encode(value)) == text


@pytest.mark.parametrize(
    ("printed", "expected", "tolerance", "same"),
    [
        ("4", "4\n", 0.0, True), ("4 \r\n\n\n", "4", 0.0, True), ("a\nb", "a\n\nb", 0.0, False),
        (" 4", "4", 0.0, False), ("1 2", "1  2", 0.0, False), ("", "\n", 0.0, True),
        ("0.333333", "0.3333334", 1e-6, True), ("0.333333", "0.3333334", 0.0, False),
        ("x = 1e-9,", "x = 0", 1e-6, False), ("x 1e-9", "x  0", 1e-6, True), ("nan", "1", 1.0, False),
        ("1_0", "10", 0.1, False), ("inf", "1e999", 0.1, False), ("1 2", "1", 9.0, False),
    ],
)  # fmt: skip
def test_outputs_are_compared_line_by_line(printed: str, expected: str, tolerance: float, same: bool) -> None:
    assert (judging.output_difference(printed, expected, tolerance) == "") is same


@given(st.text(alphabet="a1. \n\t"), st.text(alphabet="a1. \n\t"))
def test_outputs_are_the_same_when_their_stripped_lines_are(one: str, other: str) -> None:
    def lines(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.split("\n")).rstrip("\n")

    assert (judging.output_difference(one, other, 0.0) == "") is (lines(one) == lines(other))


def test_the_first_line_that_differs_of_long_outputs_is_told() -> None:
    lines = [str(number) for number in range(100)]
    assert judging.output_difference("\n".join(lines[:50]), "\n".join(lines), 0.0) == (
        "printed nothing more on line 51, expected '50'"
    )
    assert judging.output_difference("3", "4", 0.0) == "printed '3', expected '4'"
