"""Intervals against published values and slow computations."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.evals.statistics import (
    clustered_estimate,
    paired_difference,
    student_quantile,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_gives_the_published_intervals(successes: int, count: int, low: float, high: float) -> None:
    assert wilson_interval(successes, count) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_wilson_bounds_are_where_the_score_test_turns(case: tuple[int, int]) -> None:
    successes, count = case
    z = 1.959963984540054
    for bound in wilson_interval(successes, count):
        if 0 < bound < 1:  # (p - bound)^2 = z^2 * bound * (1 - bound) / n defines the interval
            left = (successes / count - bound) ** 2
            assert left == pytest.approx(z * z * bound * (1 - bound) / count, rel=1e-6)


@pytest.mark.parametrize(("successes", "count"), [(1, 0), (-1, 3), (4, 3)])
def test_impossible_counts_are_refused(successes: int, count: int) -> None:
    with pytest.raises(ValueError, match="successes of"):
        wilson_interval(successes, count)


@pytest.mark.parametrize(
    ("confidence", "degrees", "value"),
    [  # printed tables of Student's t, two-sided
        (0.95, 1, 12.706),
        (0.95, 2, 4.303),
        (0.95, 3, 3.182),
        (0.95, 4, 2.776),
        (0.95, 9, 2.262),
        (0.95, 30, 2.042),
        (0.95, 127, 1.979),
        (0.99, 5, 4.032),
        (0.90, 10, 1.812),
        (0.95, 100_000, 1.960),
    ],
)
def test_students_t_agrees_with_printed_tables(confidence: float, degrees: int, value: float) -> None:
    assert student_quantile(confidence, degrees) == pytest.approx(value, abs=6e-4)


def slow_clustered(scores: list[list[float]]) -> tuple[float, float]:
    """The same variance, written as a double sum over all pairs of episodes within each task."""
    flat = [score for row in scores for score in row]
    mean = sum(flat) / len(flat)
    total = 0.0
    for row in scores:
        for a in row:
            for b in row:
                total += (a - mean) * (b - mean)
    clusters = len(scores)
    return mean, math.sqrt(clusters / (clusters - 1) * max(0.0, total)) / len(flat)


rows = st.lists(st.floats(0, 1), min_size=1, max_size=4)


@given(st.lists(rows, min_size=2, max_size=8))
def test_the_clustered_error_equals_the_double_sum(scores: list[list[float]]) -> None:
    estimate = clustered_estimate(scores)
    mean, error = slow_clustered(scores)
    assert estimate.mean == pytest.approx(mean, abs=1e-12)
    assert estimate.standard_error == pytest.approx(error, rel=1e-6, abs=1e-7)


def test_copies_of_an_episode_add_no_certainty() -> None:
    single = [[1.0], [0.0], [1.0], [1.0], [0.0]]
    copied = [row * 10 for row in single]
    assert clustered_estimate(copied).standard_error == pytest.approx(
        clustered_estimate(single).standard_error
    )


def test_episodes_that_were_not_counted_are_left_out() -> None:
    assert clustered_estimate([[True, None], [False], [None]]) == clustered_estimate([[1.0], [0.0]])


def test_a_paired_difference_by_hand() -> None:
    first = [[0, 0], [1, 0], [1, 1], [None, None]]
    second = [[1, 0], [1, 1], [1, None], [1, 1]]
    found = paired_difference(first, second)  # moves 0.5, 0.5, 0: mean 1/3, deviation sqrt(1/12)
    assert found.mean == pytest.approx(1 / 3)
    assert found.standard_error == pytest.approx(math.sqrt(1 / 12 / 3))
    assert found.high - found.mean == pytest.approx(4.302653 * math.sqrt(1 / 36), rel=1e-6)
    assert (found.better, found.worse, found.equal, found.num_tasks) == (2, 0, 1, 3)
    assert not found.is_clear


def test_pairing_sees_what_two_separate_intervals_do_not() -> None:
    generator = random.Random(3)
    hardness = [generator.random() for _ in range(60)]
    first = [[h] for h in hardness]
    second = [[h + 0.05 + generator.gauss(0, 0.02)] for h in hardness]
    assert paired_difference(first, second).is_clear
    assert clustered_estimate(first).high > clustered_estimate(second).low  # they overlap


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    generator = random.Random(0)
    covered = 0
    for _ in range(400):
        hardness = [generator.random() for _ in range(25)]
        first = [[generator.random() < h for _ in range(2)] for h in hardness]
        second = [[generator.random() < min(1.0, h + (1 - h) * 0.2) for _ in range(2)] for h in hardness]
        found = paired_difference(first, second)
        covered += found.low <= 0.1 <= found.high  # the mean of (1 - h) * 0.2 is 0.1
    assert 0.91 <= covered / 400 <= 0.985


def test_evaluations_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference([[1.0]], [[1.0], [0.0]])
    with pytest.raises(ValueError, match="at least 2"):
        paired_difference([[1.0], [None]], [[1.0], [0.0]])
