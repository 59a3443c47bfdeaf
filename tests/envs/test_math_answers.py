"""Answers are found where they were marked and compared as exact numbers."""

from __future__ import annotations

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_envs.math.answers import find_answer
from agentgym_envs.math.number import Number, parse_number

NBSP = "\N{NO-BREAK SPACE}"


def equal(left: str, right: str) -> bool:
    one, other = parse_number(left), parse_number(right)
    return one is not None and other is not None and one.equals(other) and other.equals(one)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("42", "42.0"),
        ("1,234", "1234"),
        ("1{,}234.50", "1234.5"),
        ("1\\,234", "1234"),
        (f"1{NBSP}234", "1234"),
        ("$1,000,000.00", "1e6"),
        ("0.5", "1/2"),
        (".5", "2/4"),
        ("-3/4", "-\\frac{3}{4}"),
        ("\\dfrac{10}{4}", "2.5"),
        ("\\frac12", "0.5"),
        ("3 1/2", "3.5"),
        ("3\\frac{1}{2}", "7/2"),
        ("−7", "-7"),
        ("2.5 \\times 10^{3}", "2500"),
        ("1e-2", "0.01"),
        ("50%", "50"),
        ("50 %", "1/2"),
        ("50\\%", "50%"),
        ("+8", "8"),
        ("42 apples", "42"),
        ("42.", "42"),
    ],
)
def test_equal_numbers_are_equal_however_written(left: str, right: str) -> None:
    assert equal(left, right)


@pytest.mark.parametrize(
    ("left", "right"),
    [("42", "43"), ("0.333", "1/3"), ("50%", "5"), ("1,234", "1.234"), ("-5", "5"), ("1e3", "100"), ("7", "07.1")],
)
def test_different_numbers_are_different(left: str, right: str) -> None:
    assert not equal(left, right)


@pytest.mark.parametrize(
    "text", ["", "none", "x2", "1/0", "1e999999999", "9" * 5000, "1 and 2", "٣", "nan", "inf", "½"]
)
def test_what_is_no_single_number_is_none(text: str) -> None:
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("6 * 7 = 42\n#### 42", "42"),
        ("#### 41\nNo, wait.\n#### 42", "42"),
        ("#### 42 (apples)", "42"),
        ("The answer is easy. It is 42.", "42"),
        ("The answer is 42, which is 6 times 7.", "42"),
        ("Answer: x = 42", "42"),
        ("Answer: 40 + 2 = 42", "42"),
        ("**Answer:** 42 apples", "42"),
        ("Answer:\n\n42", "42"),
        ("so \\boxed{42}", "42"),
        ("so \\boxed{\\frac{3}{4}} of 9", "3/4"),
        ("\\boxed{1} and then \\boxed{x = \\sqrt{4} = 2}", "2"),
        ("#### $1,350.00", "1350"),
        ("#### -7", "-7"),
        ("\\boxed{42} is what I get.\n#### 43", "43"),
        ("\\boxed{42}. Trying it shows that our answer is correct.", "42"),
    ],
)
def test_the_last_marked_answer_counts(text: str, number: str) -> None:
    found = find_answer(text)
    assert found.marked and str(found.number) == number


@pytest.mark.parametrize(
    ("text", "number"),
    [("First 6, then 7, so 42.", "42"), ("10-7", "7"), ("it is -7", "-7"), ("(3)-4", "4"), ("75%", "75%")],
)
def test_without_a_mark_the_last_number_counts(text: str, number: str) -> None:
    found = find_answer(text)
    assert not found.marked and str(found.number) == number


@pytest.mark.parametrize("text", ["", "no idea", "####", "#### no idea", "\\boxed{x", "12 \\boxed{}"])
def test_no_number_is_no_answer(text: str) -> None:
    assert find_answer(text).number is None


def test_naming_every_number_wins_only_by_the_last_one() -> None:
    text = "\n".join(f"#### {n}" for n in range(100))
    assert str(find_answer(text).number) == "99"


@given(st.text(alphabet="0123456789.,/eE+-%#{}\\ boxedfrac\n$=", max_size=200))
def test_no_text_breaks_the_search(text: str) -> None:
    found = find_answer(text)
    assert found.number is None or isinstance(found.number.value, Fraction)


@given(st.fractions(), st.booleans())
def test_the_canonical_form_reads_back(value: Fraction, percent: bool) -> None:
    number = Number(value, percent)
    if len(str(number)) <= 60:
        assert parse_number(str(number)) == number


@pytest.mark.parametrize("piece", ["1,", "\\boxed{", "9", "1/", "- "])
def test_long_texts_are_searched_in_linear_time(piece: str) -> None:
    text = piece * (100_000 // len(piece))

    def took_s(text: str) -> float:
        """The shortest of three: what stalls one of them, such as a garbage collection, does not count."""
        return min(once_s(text) for _ in range(3))

    def once_s(text: str) -> float:
        began_s = time.thread_time()  # others' work does not count
        find_answer(text)
        return time.thread_time() - began_s

    whole_s = took_s(text)
    assert whole_s < 0.5 or whole_s < 24 * took_s(text[: len(text) // 8])  # quadratic: 64 times
