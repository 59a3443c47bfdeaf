"""Values of trained tokens find their way back to the turns."""

import pytest
from sampled import sampled_turn

from agentgym.rl.samples import group_samples
from agentgym.rl.trained import by_turn
from agentgym.types import Episode, Group, Outcome, Task

TASK = Task(task_id="t", prompt=())


def turn(prompt, completion, masked=False):
    return sampled_turn(prompt, completion, [-token / 100 for token in completion], masked=masked)


def episode(name, *, masked=False):
    turns = [turn([1], [10, 11]), turn([1, 10, 11, 2], [12], masked), turn([1, 10, 11, 2, 12, 3], [13, 14, 15])]
    return Episode(episode_id=name, task=TASK, seed=0, turns=turns, reward=1.0, outcome=Outcome.SCORED)


def test_each_turn_gets_its_own_values_and_what_was_not_trained_none():
    """The sampler's own log-probabilities, taken from the samples, come back to where they were."""
    episodes = [episode("a"), episode("left out"), episode("b", masked=True)]
    groups = [Group(group_id=0, task=TASK, start_version=0, episodes=episodes, advantages=[1.0, None, -1.0])]
    samples = group_samples(groups)
    values = [p for s in samples for p, mask in zip(s.logprobs, s.loss_mask, strict=True) if mask]
    assert by_turn(groups, values) == {
        "a": [[-0.1, -0.11], [-0.12], [-0.13, -0.14, -0.15]],
        "b": [[-0.1, -0.11], [], [-0.13, -0.14, -0.15]],
    }


def test_a_number_of_values_that_does_not_fit_is_refused():
    groups = [Group(group_id=0, task=TASK, start_version=0, episodes=[episode("a")], advantages=[1.0])]
    for count in (5, 7):
        with pytest.raises(ValueError, match="trained tokens"):
            by_turn(groups, [0.0] * count)


def test_a_turn_of_several_branches_has_its_values_once():
    """The third turn goes on from the first: a sample of its own, in which the first is context."""
    one = episode("a")
    one.turns[2] = turn([1, 10, 11, 4], [13, 14, 15])
    one.branches = [(0, 2), (0, 1)]
    groups = [Group(group_id=0, task=TASK, start_version=0, episodes=[one], advantages=[1.0])]
    samples = group_samples(groups)
    assert len(samples) == 2
    values = [p for s in samples for p, mask in zip(s.logprobs, s.loss_mask, strict=True) if mask]
    assert by_turn(groups, values) == {"a": [[-0.1, -0.11], [-0.12], [-0.13, -0.14, -0.15]]}
