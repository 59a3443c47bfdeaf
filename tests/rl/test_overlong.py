"""DAPO's soft overlong punishment."""

from __future__ import annotations

import pytest
from sampled import sampled_turn

from agentgym.rl.advantages.overlong import SoftOverlong
from agentgym.types import Episode, Task


def answer(num_tokens: int, reward: float) -> Episode:
    turn = sampled_turn((1,), (2,) * num_tokens)
    return Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, turns=[turn], reward=reward)


def test_of_equal_rewards_the_answer_near_its_limit_is_the_worse_one() -> None:
    advantage = SoftOverlong(max_tokens=100, cache_tokens=20)
    assert advantage([answer(50, 1.0), answer(80, 1.0)]) == [0.0, 0.0]
    assert advantage([answer(80, 1.0), answer(90, 1.0)]) == pytest.approx([1.0, -1.0], abs=1e-4)
    assert [advantage.punishment(n) for n in (80, 85, 90, 100, 101, 500)] == [0, -0.25, -0.5, -1, -1, -1]


def test_scale_decides_how_much_length_costs_against_the_reward() -> None:
    right_and_long, wrong_and_short = answer(100, 1.0), answer(10, 0.2)
    assert SoftOverlong(max_tokens=100, cache_tokens=20)([right_and_long, wrong_and_short])[0] < 0
    assert SoftOverlong(max_tokens=100, cache_tokens=20, scale=0.5)([right_and_long, wrong_and_short])[0] > 0
    with pytest.raises(ValueError, match="cache_tokens 200 must be above 0 and at most max_tokens 100"):
        SoftOverlong(max_tokens=100, cache_tokens=200)
