"""The order in which a run draws its tasks."""

import itertools

import pytest

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.rollout import tasks
from agentgym.rollout.tasks import Sequential, Shuffled
from agentgym.types import Task


class Finite(Environment):
    """Three tasks whose names end with the seed that ordered them."""

    name = "finite"
    rewards = {}

    def __init__(self, count=3):
        self._count = count

    def tasks(self, split, seed=0):
        return iter([Task(task_id=f"{number}/{seed}", prompt=()) for number in range(self._count)])


def drawn(sampler, start, count=7):
    return [task.task_id for task in itertools.islice(sampler.tasks(Finite(), 5, start), count)]


def test_a_finite_split_is_drawn_again_with_the_next_seed_or_in_the_same_order():
    assert drawn(Shuffled(), 0) == ["0/5", "1/5", "2/5", "0/6", "1/6", "2/6", "0/7"]
    assert drawn(Sequential(), 0) == ["0/5", "1/5", "2/5", "0/5", "1/5", "2/5", "0/5"]


@pytest.mark.parametrize("sampler", [Shuffled(), Sequential()])
def test_a_resumed_run_goes_on_with_the_tasks_it_would_have_had(sampler):
    assert drawn(sampler, 4, 3) == drawn(sampler, 0)[4:]


def test_a_task_says_the_split_that_it_is_of_where_its_environment_left_that_out():
    found = [*tasks.drawn(Finite(), "test", 5), *itertools.islice(Sequential().tasks(Finite(), 5, 0), 2)]
    assert [task.split for task in found] == ["test", "test", "test", "train", "train"]


def test_a_split_without_tasks_is_the_users_mistake():
    with pytest.raises(UserError, match="'finite' has no training tasks"):
        next(Shuffled().tasks(Finite(count=0), 0, 0))


def test_a_subclass_has_a_name_of_its_own():
    class Longer(Finite):
        pass

    assert (Finite.name, Longer.name) == ("finite", "Longer")
