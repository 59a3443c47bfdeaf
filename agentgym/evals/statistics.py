"""Confidence intervals: for the success of one checkpoint, and for the difference of two.

Episodes of one task are correlated, so the tasks, not the episodes, are the independent draws.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeAlias

TaskScores: TypeAlias = Sequence[Sequence[float | None]]
"""One row for each task, one score for each of its episodes; None was not counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean over tasks, its standard error, and its confidence interval [low, high]."""

    mean: float
    standard_error: float
    low: float
    high: float
    num_tasks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """Second minus first on the same tasks. better, worse, equal: how many tasks moved which way."""

    mean: float
    standard_error: float
    low: float
    high: float
    num_tasks: int
    better: int
    worse: int
    equal: int

    @property
    def is_clear(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0


def wilson_interval(successes: int, count: int, confidence: float = 0.95) -> tuple[float, float]:
    """The interval for a proportion, which stays within [0, 1] and is not empty at 0 or 1.

    Source: E. B. Wilson, Probable inference, the law of succession, and statistical inference, JASA 22
    (1927), without continuity correction.
    """
    if not 0 <= successes <= count or count < 1:
        raise ValueError(
            f"{successes} successes of {count}: give a count of at least 1 and no more successes"
        )
    z = _normal_quantile(confidence)
    share = successes / count
    scale = 1 + z * z / count
    middle = (share + z * z / (2 * count)) / scale
    half = z / scale * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    low = 0.0 if successes == 0 else max(0.0, middle - half)
    high = 1.0 if successes == count else min(1.0, middle + half)
    return low, high


def clustered_estimate(scores: TaskScores, confidence: float = 0.95) -> Estimate:
    """The mean over all episodes, with a standard error that allows for the correlation within a task.

    The cluster-robust variance of a mean: with the residual sums r_k of K clusters and N episodes,
    K / (K - 1) * sum r_k^2 / N^2, and Student's t with K - 1 degrees of freedom.
    Source: K.-Y. Liang and S. L. Zeger, Longitudinal data analysis using generalized linear models,
    Biometrika 73 (1986); for evaluations, E. Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 2.2.
    Raises ValueError when fewer than two tasks have a counted episode.
    """
    clusters = [[float(score) for score in row if score is not None] for row in scores]
    clusters = [cluster for cluster in clusters if cluster]
    _check_count(len(clusters))
    count = sum(map(len, clusters))
    mean = math.fsum(score for cluster in clusters for score in cluster) / count
    sums = [math.fsum(score - mean for score in cluster) for cluster in clusters]
    num = len(clusters)
    error = math.sqrt(num / (num - 1) * math.fsum(r * r for r in sums)) / count
    half = student_quantile(confidence, num - 1) * error
    return Estimate(mean=mean, standard_error=error, low=mean - half, high=mean + half, num_tasks=num)


def paired_difference(first: TaskScores, second: TaskScores, confidence: float = 0.95) -> PairedDifference:
    """How much better the second does than the first on the same tasks.

    Each task gives one difference of its two means; the interval is Student's t over tasks, so a task's
    difficulty cancels out. Tasks without a counted episode on one side are left out.
    Source: Student (W. S. Gosset), The probable error of a mean, Biometrika 6 (1908); for evaluations,
    E. Miller, Adding Error Bars to Evals, arXiv:2411.00640, section 4.2.
    Raises ValueError when the lists differ in length or fewer than two tasks are left.
    """
    if len(first) != len(second):
        raise ValueError(
            f"{len(first)} tasks against {len(second)}; compare two evaluations of the same tasks"
        )
    pairs = [(_mean(a), _mean(b)) for a, b in zip(first, second, strict=True)]
    moves = [b - a for a, b in pairs if a is not None and b is not None]
    num = len(moves)
    _check_count(num)
    mean = math.fsum(moves) / num
    error = math.sqrt(math.fsum((move - mean) ** 2 for move in moves) / (num - 1) / num)
    half = student_quantile(confidence, num - 1) * error
    return PairedDifference(
        mean=mean,
        standard_error=error,
        low=mean - half,
        high=mean + half,
        num_tasks=num,
        better=sum(1 for move in moves if move > 0),
        worse=sum(1 for move in moves if move < 0),
        equal=sum(1 for move in moves if move == 0),
    )


def student_quantile(confidence: float, degrees: int) -> float:
    """The two-sided quantile of Student's t: the t with P(-t <= T <= t) = confidence.

    Found by bisection on the distribution function, which for whole degrees of freedom is a finite sum.
    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4.
    """
    if not 0 < confidence < 1 or degrees < 1:
        raise ValueError(f"confidence {confidence}, {degrees} degrees: give 0 < confidence < 1, degrees >= 1")
    low, high = 0.0, 1.0
    while _student_within(high, degrees) < confidence:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        if _student_within(middle, degrees) < confidence:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _student_within(t: float, degrees: int) -> float:
    """The probability that Student's t lies in [-t, t]."""
    angle = math.atan(t / math.sqrt(degrees))
    square = math.cos(angle) ** 2
    odd = degrees % 2
    term = total = 1.0 if degrees > 1 else 0.0
    if odd:
        term = total = math.cos(angle) if degrees > 1 else 0.0
        for k in range(3, degrees - 1, 2):
            term *= square * (k - 1) / k
            total += term
        return 2 / math.pi * (angle + math.sin(angle) * total)
    for k in range(2, degrees - 1, 2):
        term *= square * (k - 1) / k
        total += term
    return math.sin(angle) * total


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; give a number between 0 and 1")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _mean(scores: Sequence[float | None]) -> float | None:
    known = [float(score) for score in scores if score is not None]
    return math.fsum(known) / len(known) if known else None


def _check_count(num_tasks: int) -> None:
    if num_tasks < 2:
        raise ValueError(f"{num_tasks} tasks have a counted episode; an interval needs at least 2")
