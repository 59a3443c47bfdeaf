"""Confidence intervals for one checkpoint and for the difference of two; pass@k; what a comparison could have shown.

Episodes of one task are correlated, so the tasks, not the episodes, are the independent draws.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

TaskScores: TypeAlias = Sequence[Sequence[float | None]]
"""One row for each task, one score for each of its episodes; None was not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Second minus first on the same tasks. better, worse, equal: how many tasks moved which way.

    chance: the p-value of better against worse. smallest: the least true difference that as many tasks show in 8 of
    10 comparisons.
    """

    mean: float
    standard_error: float
    low: float
    high: float
    num_tasks: int
    better: int
    worse: int
    equal: int
    chance: float
    smallest: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def paired_difference(
    first: TaskScores, second: TaskScores, confidence: float = 0.95, *, shares: bool = False
) -> PairedDifference:
    """How much better the second does than the first on the same tasks.

    Each task gives one difference of its two means; the interval is Student's t over tasks, so a task's
    difficulty cancels out. Tasks without a counted episode on one side are left out.
    Source: Student (W. S. Gosset), The probable error of a mean, Biometrika 6 (1908); for evaluations,
    E. Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 4.2.

    shares: the scores are shares of successes. Where few tasks moved, their spread says little (it is 0 where none
    did), so the interval is that of two tasks more, one won and one lost.
    Source: D. Bonett and R. Price, Adjusted Wald confidence interval for a difference of binomial proportions based
    on paired data, Journal of Educational and Behavioral Statistics 37 (2012).
    Raises ValueError when the lists differ in length or fewer than two tasks are left.
    """
    if len(first) != len(second):
        raise ValueError(f"{len(first)} tasks against {len(second)}; compare two evaluations of the same tasks")
    pairs = [(_mean(a), _mean(b)) for a, b in zip(first, second, strict=True)]
    moves = [b - a for a, b in pairs if a is not None and b is not None]
    num = len(moves)
    if num < 2:
        raise ValueError(f"{num} tasks have a counted episode; an interval needs at least 2")
    widened = [*moves, 1.0, -1.0] if shares else moves
    centre = math.fsum(widened) / len(widened)
    error = math.sqrt(math.fsum((move - centre) ** 2 for move in widened) / (len(widened) - 1) / len(widened))
    half = student_quantile(confidence, num - 1) * error
    low, high = centre - half, centre + half
    better, worse = sum(1 for move in moves if move > 0), sum(1 for move in moves if move < 0)
    return PairedDifference(
        mean=math.fsum(moves) / num,
        standard_error=error,
        low=max(-1.0, low) if shares else low,
        high=min(1.0, high) if shares else high,
        num_tasks=num,
        better=better,
        worse=worse,
        equal=num - better - worse,
        chance=mcnemar(better, worse),
        smallest=smallest_effect(error, num - 1, confidence),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """Second minus first, a pair of runs a draw: what another seed's pair would be like. chance: the p-value of zero.

    smallest: the least true difference that as many runs show in 8 of 10 comparisons.
    """

    mean: float
    low: float
    high: float
    num_runs: int
    chance: float
    smallest: float

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def run_difference(moves: Sequence[float], confidence: float = 0.95, *, resolution: float = 0.0) -> RunDifference:
    """Mean and interval of the differences of several pairs of runs, for example one pair a seed, by Student's t.

    Runs with other seeds differ by much more than tasks or samples show: only runs tell how much.
    resolution: the step of the scale, as 1 / 256 for shares of 256 episodes. The spread counts as at least that of two
    roundings, since a few equal differences would have none. Raises ValueError for fewer than two.
    """
    num = len(moves)
    if num < 2:
        raise ValueError(f"{num} runs on each side; an interval over runs needs at least 2")
    mean = math.fsum(moves) / num
    variance = max(math.fsum((move - mean) ** 2 for move in moves) / (num - 1), resolution**2 / 6)
    error = math.sqrt(variance / num)
    half = student_quantile(confidence, num - 1) * error
    square = (mean / error) ** 2 if error else math.inf if mean else 0.0
    return RunDifference(
        mean=mean,
        low=mean - half,
        high=mean + half,
        num_runs=num,
        chance=_beta_cumulative((num - 1) / (num - 1 + square), (num - 1) / 2, 0.5),
        smallest=smallest_effect(error, num - 1, confidence),
    )


def holm(chances: Sequence[float]) -> list[float]:
    """P-values adjusted for being read together: the chance of a single false one among those below p is at most p.

    Source: S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of Statistics 6
    (1979).
    """
    adjusted, largest = [0.0] * len(chances), 0.0
    for place, number in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        largest = max(largest, min(1.0, (len(chances) - place) * chances[number]))
        adjusted[number] = largest
    return adjusted


def simultaneous(num: int, confidence: float = 0.95) -> float:
    """The confidence of each of so many intervals that hold all at once with `confidence`, however they depend.

    Source: Z. Sidak, Rectangular confidence regions for the means of multivariate normal distributions, Journal of the
    American Statistical Association 62 (1967).
    """
    return math.pow(confidence, 1 / num)


def mcnemar(better: int, worse: int) -> float:
    """The two-sided p-value of the exact test: if nothing differed, a task that moved would move either way alike.

    With one sample a task these are the pairs of McNemar's test. With several, a task is better when more of its
    samples succeeded: still one draw for each task, which samples of one task are not.
    Source: Q. McNemar, Note on the sampling error of the difference between correlated proportions or percentages,
    Psychometrika 12 (1947), with the binomial distribution instead of its normal approximation.
    """
    moved = better + worse
    tail = sum(math.comb(moved, k) for k in range(min(better, worse) + 1))
    return min(1.0, 2 * tail / (1 << moved))


def smallest_effect(standard_error: float, degrees: int, confidence: float = 0.95, power: float = 0.8) -> float:
    """The true difference that a comparison with this standard error shows clearly with probability `power`.

    Source: H. Bloom, Minimum detectable effects, Evaluation Review 19 (1995).
    """
    return standard_error * (student_quantile(confidence, degrees) + student_quantile(2 * power - 1, degrees))


def pass_at_k(num_samples: int, num_successes: int, k: int) -> float:
    """The probability that at least one of k samples succeeds, unbiased, from num_samples >= k of them.

    Source: M. Chen et al., Evaluating Large Language Models Trained on Code, arXiv:2107.03374, equation 1.
    """
    if not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} of {num_samples} samples; k must be from 1 to their number")
    return 1 - math.comb(num_samples - num_successes, k) / math.comb(num_samples, k)


def unrecorded(said: Iterable[bool | None]) -> bool | None:
    """What an episode counts as whose environment recorded no success; said: of all episodes that it is counted with.

    A failure beside episodes that have one: it ended before its environment judged it. Unknown (None) where none has.
    """
    return next((False for one in said if one is not None), None)


def mean_interval(scores: TaskScores, confidence: float = 0.95) -> tuple[float | None, float | None]:
    """The interval of `success_share` for scores of any scale, such as rewards: Student's t over tasks.

    None below two tasks with a counted episode.
    """
    means = [mean for row in scores if (mean := _mean(row)) is not None]
    if len(means) < 2:
        return None, None
    centre = math.fsum(means) / len(means)
    error = math.sqrt(math.fsum((mean - centre) ** 2 for mean in means) / (len(means) - 1) / len(means))
    half = student_quantile(confidence, len(means) - 1) * error
    return centre - half, centre + half


def success_share(scores: TaskScores) -> float:
    """The mean over tasks of the share of their counted episodes that succeeded, which is pass@1; of rewards, too.

    A task of which infrastructure broke more episodes counts as much as another. Raises ValueError when no episode was
    counted.
    """
    means = [mean for row in scores if (mean := _mean(row)) is not None]
    if not means:
        raise ValueError("no episode was counted; a share of successes needs at least 1")
    return math.fsum(means) / len(means)


def success_interval(scores: TaskScores, confidence: float = 0.95) -> tuple[float, float]:
    """The interval for `success_share` (scores of 0 or 1) when each task was played several times.

    Clopper and Pearson's exact interval for as many independent episodes as hold the same information: the episodes
    divided by the design effect, which the spread between tasks shows. Where no episode or every one succeeded it
    shows nothing, and the number of tasks is taken. So the interval is not empty at 0 or 1, and never leaves [0, 1].
    Tasks with unequal numbers of episodes weigh the same, so those count as fewer, as many as their harmonic mean says.
    Source: E. Korn and B. Graubard, Confidence intervals for proportions with small expected number of positive
    counts estimated from survey data, Survey Methodology 24 (1998), with the degrees-of-freedom correction; for
    evaluations, E. Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 2.2.
    Raises ValueError when no episode was counted.
    """
    mean = success_share(scores)
    lengths = [count for row in scores if (count := sum(score is not None for score in row))]
    tasks = len(lengths)
    episodes = tasks * tasks / math.fsum(1 / count for count in lengths)
    effective = episodes
    if tasks > 1 and episodes > tasks:
        effective = tasks
        if 0 < mean < 1:
            means = [one for row in scores if (one := _mean(row)) is not None]
            variance = math.fsum((one - mean) ** 2 for one in means) / (tasks - 1) / tasks
            effective = mean * (1 - mean) / max(variance, mean * (1 - mean) / episodes)
        correction = student_quantile(confidence, round(episodes) - 1) / student_quantile(confidence, tasks - 1)
        effective = min(max(effective * correction**2, tasks), episodes)
    return _exact_interval(mean, effective, confidence)


def weighted_mean(
    scores: TaskScores, weights: Sequence[float], confidence: float = 0.95
) -> tuple[float, float | None, float | None]:
    """The mean over tasks with these weights, and its interval; `success_share` where all weigh the same.

    Scores from 0 to 1 have the interval of `success_interval`, with as many independent tasks as Kish's formula gives
    for the weights, or fewer where the variance of the weighted mean shows so; others Student's t, None below two
    tasks. The spread is around the one mean, not that of each category, so the interval is rather wide.
    Source: L. Kish, Survey Sampling (1965), for the variance of a ratio of sums and the effective number.
    Raises ValueError when no task has a score and a weight above 0.
    """
    tasks = [(mean, weight) for row, weight in zip(scores, weights, strict=True)
             if weight > 0 and (mean := _mean(row)) is not None]  # fmt: skip
    if not tasks:
        raise ValueError("no episode was counted; a weighted mean needs at least 1")
    total = math.fsum(weight for _, weight in tasks)
    value = math.fsum(mean * weight for mean, weight in tasks) / total
    is_share = all(score is None or 0 <= score <= 1 for row in scores for score in row)
    if len({weight for _, weight in tasks}) == 1:
        kept = [row for row, weight in zip(scores, weights, strict=True) if weight > 0]
        return value, *(success_interval(kept) if is_share else mean_interval(kept))
    squares = math.fsum((weight * (mean - value)) ** 2 for mean, weight in tasks)
    variance = squares / total**2 * len(tasks) / (len(tasks) - 1)
    quantile = student_quantile(confidence, len(tasks) - 1)
    if not is_share:
        half = quantile * math.sqrt(variance)
        return value, value - half, value + half
    kish = total**2 / math.fsum(weight**2 for _, weight in tasks)
    effective = min(kish, value * (1 - value) / variance) if variance and 0 < value < 1 else kish
    return value, *_exact_interval(value, max(1.0, effective), confidence)


def _exact_interval(mean: float, trials: float, confidence: float) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share in `trials` independent trials, which need not be whole."""
    successes, tail = mean * trials, (1 - confidence) / 2
    low = 0.0 if mean == 0 else _beta_quantile(tail, successes, trials - successes + 1)
    high = 1.0 if mean == 1 else _beta_quantile(1 - tail, successes + 1, trials - successes)
    return low, high


@functools.cache
def student_quantile(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's t: the t with P(-t <= T <= t) = confidence.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.1 (t by the incomplete beta function).
    """
    if not 0 < confidence < 1 or degrees < 1:
        raise ValueError(f"confidence {confidence}, {degrees} degrees: give 0 < confidence < 1, degrees >= 1")
    share = _beta_quantile(1 - confidence, degrees / 2, 0.5)  # of degrees / (degrees + t^2)
    return math.sqrt(degrees * (1 / share - 1))


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Where the beta distribution's cumulative probability is reached, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(80):
        middle = (low + high) / 2
        if _beta_cumulative(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _beta_cumulative(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function I_x(a, b).

    Source: Abramowitz and Stegun, 26.5.8, a continued fraction, evaluated by Lentz's method.
    """
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # where the fraction converges slowly
        return 1 - _beta_cumulative(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    numerator, denominator = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    fraction = denominator
    for m in range(1, 1000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1 / (1 + term * denominator)
            numerator = 1 + term / numerator
            fraction *= denominator * numerator
        if abs(denominator * numerator - 1) < 1e-13:
            break
    return math.exp(scale) * fraction / a


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [float(score) for score in scores if score is not None]
    return math.fsum(known) / len(known) if known else None
