"""Intervals against published values and slow computations."""

from __future__ import annotations

import itertools
import math
import random
import statistics
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.evals.play import pass_shares
from agentgym.evals.statistics import (
    PairedDifference,
    holm,
    mcnemar,
    paired_difference,
    pass_at_k,
    run_difference,
    smallest_effect,
    student_quantile,
    success_interval,
    success_share,
)


@pytest.mark.parametrize(
    ("successes", "count", "low", "high"),
    [  # Newcombe, Statistics in Medicine 17 (1998) 857-872, table I, method 5
        (81, 263, 0.2527, 0.3676),
        (15, 148, 0.0578, 0.1617),
        (0, 20, 0.0, 0.1684),
        (1, 29, 0.0009, 0.1776),
    ],
)
def test_one_play_a_task_gives_the_published_exact_interval(
    successes: int, count: int, low: float, high: float
) -> None:
    scores = [[number < successes] for number in range(count)]
    assert success_interval(scores) == pytest.approx((low, high), abs=5e-5)


def coverage(tasks: int, successes_of_a_task: list[float], mean: float) -> float:
    """The probability that the interval holds the mean, summed over every outcome of tasks played twice."""
    zero, one, two = successes_of_a_task
    covered = 0.0
    for none in range(tasks + 1):
        for once in range(tasks - none + 1):
            both = tasks - none - once
            ways = math.comb(tasks, none) * math.comb(tasks - none, once)
            low, high = success_interval([[0, 0]] * none + [[0, 1]] * once + [[1, 1]] * both)
            covered += ways * zero**none * one**once * two**both * (low <= mean <= high)
    return covered


@pytest.mark.parametrize("mean", [0.02, 0.035, 0.1, 0.5, 0.9, 0.98])
@pytest.mark.parametrize("alike", [0.0, 0.5, 1.0])  # the correlation of a task's two episodes
def test_the_interval_holds_the_truth_at_least_93_times_in_100(mean: float, alike: float) -> None:
    spread = mean * (1 - mean)
    outcomes = [(1 - mean) ** 2 + alike * spread, 2 * (1 - alike) * spread, mean**2 + alike * spread]
    assert coverage(16, outcomes, mean) >= 0.93


@pytest.mark.parametrize(("score", "low", "high"), [(0, 0.0, 0.2059), (1, 0.7941, 1.0)])
def test_an_interval_is_never_a_point(score: int, low: float, high: float) -> None:
    """Nothing is known of how alike a task's episodes are, so 16 tasks count as 16 episodes."""
    assert success_interval([[score] * 2] * 16) == pytest.approx((low, high), abs=5e-5)


def test_copies_of_an_episode_do_not_narrow_the_interval() -> None:
    single = [[1], [0], [1], [1], [0], [1], [1], [1]]
    assert success_interval([row * 8 for row in single]) == pytest.approx(success_interval(single), abs=1e-9)


def test_an_interval_needs_an_episode() -> None:
    with pytest.raises(ValueError, match="no episode was counted"):
        success_interval([[None], []])


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


def test_success_and_pass_at_1_and_their_intervals_agree_where_infra_errors_are_unequal_among_tasks() -> None:
    """Tasks count alike, whatever the machine took of them: 10 of 20 are solved, but 80 of 90 counted episodes."""
    by_task = [[True] * 8] * 10 + [[False, *[None] * 7]] * 10
    share = next(one for one in pass_shares(by_task, [0] * 20) if one.k == 1)
    low, high = success_interval(by_task)
    assert success_share(by_task) == share.value == 0.5
    assert (share.low, share.high) == (low, high) and low < 0.5 < high
    assert high - 0.5 == pytest.approx(0.5 - low)


def test_the_interval_holds_the_truth_where_tasks_have_unequal_numbers_of_episodes() -> None:
    """Hard tasks lose most episodes: the share over all episodes would be far from that over tasks."""
    rng, covered = random.Random(0), 0
    for _ in range(400):
        rates = [rng.choice((0.9, 0.2)) for _ in range(24)]
        scores = [[rng.random() < rate for _ in range(6 if rate > 0.5 else rng.randint(1, 2))] for rate in rates]
        low, high = success_interval(scores)
        covered += low <= 0.55 <= high
    assert covered / 400 >= 0.93


def test_episodes_that_were_not_counted_are_left_out() -> None:
    assert success_interval([[True, None, True], [False], [None]]) == success_interval([[1, 1], [0]])


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
    assert (
        2 * statistics.stdev(score for row in first for score in row) / len(first) ** 0.5 > 0.05
    )  # two separate intervals would overlap


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


def sums(num: int, better: float, worse: float) -> Iterator[tuple[int, int, float]]:
    """Every outcome of num tasks that are each won or lost with these probabilities: won, lost, its probability."""
    for won in range(num + 1):
        for lost in range(num - won + 1):
            ways = math.comb(num, won) * math.comb(num - won, lost)
            yield won, lost, ways * better**won * worse**lost * (1 - better - worse) ** (num - won - lost)


def moved(num: int, won: int, lost: int, *, shares: bool = True) -> PairedDifference:
    first, second = [0] * won + [1] * lost, [1] * won + [0] * lost
    rest = [[0]] * (num - won - lost)
    return paired_difference([[x] for x in first] + rest, [[x] for x in second] + rest, shares=shares)


@pytest.mark.parametrize(("better", "worse"), [(0.01, 0), (0.02, 0.01), (0.1, 0), (0.3, 0.05), (0.5, 0.45), (0.7, 0.3)])
def test_the_interval_of_a_difference_of_shares_holds_the_truth_where_few_tasks_move(better, worse) -> None:
    """Over every outcome of 16 tasks. Student's t alone holds it 15 times in 100 when 1 task in 100 moves."""
    covered = 0.0
    for won, lost, probability in sums(16, better, worse):
        found = moved(16, won, lost)
        covered += probability * (found.low <= better - worse <= found.high)
    assert covered >= 0.94


def test_a_difference_of_shares_is_never_a_point_and_never_over_one() -> None:
    none, all_won = moved(16, 0, 0), moved(16, 16, 0)
    assert (none.mean, none.low, none.high) == (0, -none.high, none.high) and none.high > 0.1
    assert all_won.mean == all_won.high == 1 and 0.6 < all_won.low < 0.9


@pytest.mark.parametrize(("better", "worse"), [(0, 0), (1, 0), (5, 0), (8, 2), (2, 8), (7, 7), (12, 5)])
def test_mcnemar_equals_the_count_of_all_ways_that_the_moved_tasks_could_have_gone(better: int, worse: int) -> None:
    """Of all 2^n ways, those that are at least as uneven."""
    num = better + worse
    uneven = sum(abs(2 * bin(way).count("1") - num) >= abs(better - worse) for way in range(2**num))
    assert mcnemar(better, worse) == pytest.approx(uneven / 2**num)


def test_mcnemar_rarely_calls_chance_a_difference() -> None:
    wrong = sum(p for won, lost, p in sums(40, 0.2, 0.2) if mcnemar(won, lost) <= 0.05)
    assert 0.01 < wrong <= 0.05


@pytest.mark.parametrize("num", [30, 100])
def test_the_smallest_effect_is_found_in_8_of_10_simulated_comparisons(num: int) -> None:
    generator = random.Random(num)
    effect = smallest_effect(0.4 / math.sqrt(num), num - 1)
    found = 0
    for _ in range(600):
        moves = [generator.gauss(effect, 0.4) for _ in range(num)]
        found += paired_difference([[0.0]] * num, [[move] for move in moves]).low > 0
    assert 0.75 <= found / 600 <= 0.85


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(1, 7))
def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_with_a_success(samples: list[bool], k: int) -> None:
    if k > len(samples):
        with pytest.raises(ValueError, match="k must be from 1"):
            pass_at_k(len(samples), sum(samples), k)
        return
    choices = list(itertools.combinations(samples, k))
    assert pass_at_k(len(samples), sum(samples), k) == pytest.approx(sum(map(any, choices)) / len(choices))


@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_the_interval_of_pass_at_k_holds_the_truth(rate: float) -> None:
    """24 tasks of different difficulty, 4 samples each: simulated, for k of 1, 2 and 4."""
    generator = random.Random(1)
    draws, covered = 120, dict.fromkeys((1, 2, 4), 0)
    for _ in range(draws):
        rates = [generator.choice((0.0, 2 * rate)) for _ in range(24)]
        rows = [[generator.random() < one for _ in range(4)] for one in rates]
        for share in pass_shares(rows, [0] * 24):
            truth = (1 - (1 - 2 * rate) ** share.k) / 2  # over tasks and samples
            covered[share.k] += share.low <= truth <= share.high
    assert min(covered.values()) / draws >= 0.93


def test_evaluations_of_other_tasks_are_refused() -> None:
    with pytest.raises(ValueError, match="same tasks"):
        paired_difference([[1.0]], [[1.0], [0.0]])
    with pytest.raises(ValueError, match="at least 2"):
        paired_difference([[1.0], [None]], [[1.0], [0.0]])


@pytest.mark.parametrize("moves", [(0.1, 0.2), (-0.355, 0.047, -0.363), (-0.648, -0.594, -0.723), (0.01, 0.02, 0.05)])
def test_an_interval_over_runs_is_students_t_of_the_runs_differences(moves: tuple[float, ...]) -> None:
    found = run_difference(moves)
    num, mean = len(moves), sum(moves) / len(moves)
    error = math.sqrt(sum((one - mean) ** 2 for one in moves) / (num - 1) / num)
    quantile = {2: 12.7062, 3: 4.30265}[num]  # Student, of a published table
    assert (found.mean, found.num_runs) == (pytest.approx(mean), num)
    bounds = [mean - quantile * error, mean + quantile * error]
    assert [found.low, found.high] == pytest.approx(bounds, abs=1e-5)
    t = abs(mean) / error
    chance = 1 - 2 / math.pi * math.atan(t) if num == 2 else 1 - t / math.sqrt(2 + t * t)
    assert found.chance == pytest.approx(chance, abs=1e-9) and found.is_clear == (chance < 0.05)


def test_runs_that_differ_alike_to_the_last_task_are_not_taken_for_certain() -> None:
    """Two runs of 20 tasks often differ by the same count; how sure that is follows from the step of the scale."""
    found = run_difference([0.05, 0.05], resolution=0.05)
    assert not found.is_clear and found.high - found.low > 0.3
    with pytest.raises(ValueError, match="1 runs"):
        run_difference([0.1])


@pytest.mark.parametrize(
    ("chances", "adjusted"),
    [
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.0001, 0.0058, 0.0132, 0.0289, 0.0498], [0.0005, 0.0232, 0.0396, 0.0578, 0.0578]),
        ([0.5, 0.9], [1.0, 1.0]),
    ],
)
def test_holm_multiplies_each_chance_by_the_tests_that_are_left(chances: list[float], adjusted: list[float]) -> None:
    assert holm(chances) == pytest.approx(adjusted)
