"""Success by category, and what an environment measures beside it, with the weights of a benchmark's totals."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from agentgym.cli.results import measure_tables, task_table
from agentgym.evals.play import EvalResult, summarize
from agentgym.evals.statistics import success_interval, weighted_mean
from agentgym.types import Episode, Outcome, Task


def episode(category: str, success: bool, outcome: Outcome = Outcome.SCORED, **info: Any) -> list[Episode]:
    task = Task(task_id=f"{category}-{success}", prompt=(), category=category)
    return [Episode(episode_id="e", task=task, seed=0, info={"success": success, **info}, reward=0.0, outcome=outcome)]


def test_categories_and_measures_are_columns_with_intervals_and_survive_json() -> None:
    rows = [
        episode("short", True, measures={"safe": True}),
        episode("short", False, measures={"safe": True}),
        episode("long", True, measures={"safe": False, "seconds": 12.0}),
        episode("long", True, outcome=Outcome.INFRA_ERROR, measures={"safe": False}),
        episode("long", False, measures={"safe": "yes", "seconds": 14.0, "odd": float("nan")}),
    ]
    result = summarize(rows, "policy")
    assert [(one.name, one.value, one.num_tasks) for one in result.by_category] == [("long", 0.5, 2), ("short", 0.5, 2)]
    assert [(one.name, one.value, one.num_tasks) for one in result.measures] == [("safe", 2 / 3, 3), ("seconds", 13, 2)]
    assert (result.measures[0].low, result.measures[0].high) == success_interval([[True], [True], [False]])
    [(header, [[name, *cells]])] = measure_tables([result])
    assert header == ("checkpoint", "long", "short", "safe", "seconds")
    assert (name, cells[2]) == ("policy", "0.667 [0.094, 0.992]")
    assert EvalResult.from_mapping(json.loads(json.dumps(result.to_mapping()))) == result


def test_a_row_for_each_task_has_success_pass_at_k_time_and_container_seconds() -> None:
    rows = [episode("a", True) + episode("a", False) + episode("a", False), episode("b", True, Outcome.INFRA_ERROR) * 3]
    for number, one in enumerate(rows[0]):
        one.timing_s = {"episode_s": float(number), "session_s": 2.0 * number}
    result = summarize(rows, "policy")
    assert EvalResult.from_mapping(json.loads(json.dumps(result.to_mapping()))) == result
    header, (first, second) = task_table(result)
    assert header == ("task", "episodes", "success", "95% interval", "pass@2", "pass@3", "reward", "time", "container")
    low, high = success_interval([[True], [False], [False]])
    assert first[:4] == ("a-True", "3", "0.333", f"[{low:.3f}, {high:.3f}]")
    assert first[4:] == ("0.667", "1.000", "0.000", "1.0 s", "2.0 s")
    assert second == ("b-True", "0", *"-------")
    assert task_table(summarize([episode("a", True)], "policy")) == ((), [])  # no container, no table


def test_one_category_is_no_column() -> None:
    assert summarize([episode("only", True), episode("only", False)], "policy").by_category == ()


def test_a_weighted_total_is_the_mean_of_the_categories_shares() -> None:
    """As a leaderboard takes it: 2 of 8 in the large category and 1 of 2 in the small one are 0.375, not 0.3."""
    rows = [episode("large", n < 2, measures={"total": n < 2}, weights={"total": 1}) for n in range(8)]
    rows += [episode("small", n < 1, measures={"total": n < 1}, weights={"total": 1}) for n in range(2)]
    [total] = summarize(rows, "policy").measures
    assert total.value == pytest.approx(0.375)
    [part] = summarize([*rows[:4], rows[8]], "policy").measures  # 2 of 4, and 1 of 1
    assert part.value == pytest.approx(0.75)
    assert total.low is not None and total.high is not None and total.low < 0.3 < 0.45 < total.high


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_weighted_intervals_hold_the_true_share(share: float) -> None:
    generator, held = random.Random(7), 0
    weights = [1.0] * 60 + [5.0] * 20
    for _ in range(300):
        scores = [[float(generator.random() < share)] for _ in weights]
        _, low, high = weighted_mean(scores, weights)
        assert low is not None and high is not None
        held += low <= share <= high
    assert held >= 280  # 95% of 300 are 285
