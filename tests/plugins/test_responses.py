"""Rewards of single responses: what earns all, a part, and nothing."""

import pytest

from agentgym.types import Episode, Task
from agentgym_plugins.responses import MathReward, ThinkingReward, math_reward, thinking_reward


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("so <answer>1,250.0</answer>", 1.0),
        (r"so \boxed{1250}", 1.0),
        ("<answer>7</answer> no, <answer>$1250</answer>", 1.0),
        ("<answer>1250</answer> no, <answer>7</answer>", 0.0),  # the last one counts
        ("it is 1250, <answer>7</answer>", 0.1),
        ("it is 12505", 0.0),  # part of another number
        ("<answer>about 1250</answer>", 0.0),
        ("", 0.0),
    ],
)
def test_a_math_answer_counts_in_its_tag_and_a_little_elsewhere(response, expected):
    assert MathReward()("how much?", response, "1250") == expected


def test_the_tolerance_bounds_the_difference():
    assert MathReward(tolerance=0.01)("", "<answer>0.339</answer>", "0.333") == 1.0
    assert MathReward(tolerance=0.001, partial_credit=0.0)("", "0.333 <answer>0.339</answer>", "0.333") == 0.0


def test_a_target_that_is_no_number_is_an_error_and_not_a_zero():
    with pytest.raises(ValueError, match="the target 'blue' is not a number"):
        MathReward()("", "<answer>1</answer>", "blue")


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>first a</think> b", 1.0),
        ("< THINK >\nfirst\n</ think > b", 1.0),
        ("<think>  </think> b", 0.2),
        ("</think> a <think>", 0.2),
        ("<thinking>a</thinking>", 0.0),
        ("b", 0.0),
    ],
)
def test_thoughts_count_between_their_tags(response, expected):
    assert ThinkingReward()("", response) == expected
    assert ThinkingReward(tag="plan")("", response.replace("think", "plan").replace("THINK", "plan")) == expected


def test_settings_that_pay_more_for_less_are_refused():
    with pytest.raises(ValueError, match="partial_reward <= full_reward"):
        ThinkingReward(partial_reward=0.9, full_reward=0.5)
    with pytest.raises(ValueError, match="partial_credit 2 from 0 to 1"):
        MathReward(partial_credit=2)


def test_of_an_episode_the_last_reply_counts():
    episode = Episode(episode_id="e", task=Task(task_id="t", prompt=(), answer=12), seed=0)
    assert math_reward(episode) == thinking_reward(episode) == 0.0
    episode.messages = [
        {"role": "assistant", "content": "<answer>12</answer>"},
        {"role": "user", "content": "<think>sure?</think>"},
        {"role": "assistant", "content": "<think>yes</think> <answer>13</answer>"},
    ]
    assert (math_reward(episode), thinking_reward(episode)) == (0.0, 1.0)
    assert math_reward(Episode(episode_id="e", task=Task(task_id="t", prompt=(), answer="blue"), seed=0)) is None
