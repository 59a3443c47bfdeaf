import pytest

from agentgym.rl.advantages import assign_advantages, compute_advantages
from agentgym.types import Episode, Group, Outcome, Task


def test_names_against_numbers_worked_by_hand():
    rewards = [1.0, 0.0, 0.0, 1.0]
    assert compute_advantages(rewards, "mean_only") == [0.5, -0.5, -0.5, 0.5]
    assert compute_advantages(rewards, "std_normalized") == pytest.approx([1, -1, -1, 1], abs=1e-5)
    # leave-one-out: 1 - 1/3 and 0 - 2/3
    assert compute_advantages(rewards, "rloo") == pytest.approx([2 / 3, -2 / 3, -2 / 3, 2 / 3])


@pytest.mark.parametrize("rewards", [[0.3] * 5, [0.1 + 0.2, 0.3], [1.0], []])
def test_equal_rewards_give_exactly_zero(rewards):
    assert compute_advantages(rewards, "std_normalized") == [0.0] * len(rewards)


def episode(outcome, reward):
    return Episode(episode_id="e", task=Task(task_id="t", prompt=()), seed=0, outcome=outcome, reward=reward)


def test_a_broken_episode_is_left_out_and_an_invalid_one_counts():
    group = Group(group_id=0, task=Task(task_id="t", prompt=()), start_version=0)
    group.episodes = [
        episode(Outcome.SCORED, 1.0),
        episode(Outcome.INFRA_ERROR, None),
        episode(Outcome.INVALID, 0.0),
    ]
    assign_advantages(group, "mean_only")
    assert group.advantages == [0.5, None, -0.5]
    assert group.has_signal


def test_a_group_of_broken_episodes_has_no_signal():
    group = Group(group_id=0, task=Task(task_id="t", prompt=()), start_version=0)
    group.episodes = [episode(Outcome.INFRA_ERROR, None), episode(Outcome.SCORED, 1.0)]
    assign_advantages(group, "std_normalized")
    assert group.advantages == [None, 0.0]
    assert not group.has_signal
