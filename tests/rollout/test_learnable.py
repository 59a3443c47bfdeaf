"""Tasks are chosen by whether their groups had signal: what is preferred, that nothing is forgotten, the same again."""

import asyncio
import json
import random

import pytest

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.rollout.learnable import Learnable
from agentgym.types import Group, Task

IN_FLIGHT = 4


class Levels(Environment):
    """Endless tasks, every second of difficulty 2; or as many as are asked for, with names that come again."""

    name = "levels"
    rewards = {"success": 1.0}

    def __init__(self, count=None):
        self._count = count

    def tasks(self, split, seed=0):
        number = 0
        while self._count is None or number < self._count:
            name = str(number) if self._count else f"{seed}/{number}"
            yield Task(task_id=name, prompt=(), difficulty=1 + number % 2)
            number += 1


async def play(sampler, has_signal, num_groups, *, environment=None, start=0, state=None, order=0):
    """The drawn tasks, and the stream: groups end in an order that `order` decides, `IN_FLIGHT` at a time."""
    stream = sampler.stream(environment or Levels(), 7, start, in_flight=IN_FLIGHT, state=state)
    rng, playing, drawn = random.Random(order), [], []

    def end_one():
        group_id, task = playing.pop(rng.randrange(len(playing)))
        group = Group(group_id=group_id, task=task, start_version=0)
        group.advantages = [1.0 if has_signal(task, group_id) else 0.0]
        stream.observe(group)

    for group_id in range(start, start + num_groups):
        drawing = asyncio.ensure_future(stream.draw())
        while len(playing) >= IN_FLIGHT:
            end_one()
        for _ in range(3):
            await asyncio.sleep(0)
        while not drawing.done():  # it waits for a group that is still played
            end_one()
            await asyncio.sleep(0)
        drawn.append(await drawing)
        playing.append((group_id, drawn[-1]))
    while playing:
        end_one()
    return drawn, stream


def share(tasks, difficulty):
    return sum(task.difficulty == difficulty for task in tasks) / len(tasks)


async def test_tasks_with_signal_are_preferred_and_the_others_still_tried():
    drawn, stream = await play(Learnable(), lambda task, _: task.difficulty == 2, 400)
    late = drawn[200:]
    assert share(late, 2) > 0.8  # half of the split
    assert share(late, 1) > 0.05
    assert stream.metrics()["tasks/signal_difficulty_1"] < 0.1 < 0.9 < stream.metrics()["tasks/signal_difficulty_2"]


async def test_a_difficulty_that_gets_signal_later_comes_back():
    drawn, _ = await play(Learnable(memory=16), lambda task, group: (task.difficulty == 2) == (group < 200), 500)
    assert share(drawn[100:200], 1) < 0.3 < 0.7 < share(drawn[400:], 1)


async def test_single_tasks_without_signal_are_avoided_within_a_difficulty():
    dead = {"0", "2", "4", "6", "8", "10"}  # six of the eight of difficulty 1
    signal = lambda task, _: task.task_id not in dead  # noqa: E731
    drawn, _ = await play(Learnable(explore=0.1), signal, 600, environment=Levels(16))
    late = [task.task_id for task in drawn[300:]]
    assert sum(name in dead for name in late) / len(late) < 0.5 * len(dead) / 16
    assert dead <= set(late)


async def test_the_draws_do_not_depend_on_which_group_ends_first():
    signal = lambda task, group: task.difficulty == 2 and group % 3 > 0  # noqa: E731
    first, _ = await play(Learnable(), signal, 120, order=1)
    second, _ = await play(Learnable(), signal, 120, order=2)
    assert first == second
    other, _ = await play(Learnable(), lambda task, _: task.difficulty == 1, 120, order=1)
    assert other != first


@pytest.mark.parametrize("save_before", [False, True])
async def test_a_resumed_run_makes_the_same_draws(save_before):
    signal = lambda task, group: task.difficulty == 2 and group % 3 > 0  # noqa: E731
    whole, _ = await play(Learnable(), signal, 150)
    begun, stream = await play(Learnable(), signal, 100)
    if save_before:
        stream.state(40)  # an earlier checkpoint of the same run
    saved = json.loads(json.dumps(stream.state(90)))
    resumed, _ = await play(Learnable(), signal, 60, start=90, state=saved)
    assert begun == whole[:100]
    assert resumed == whole[90:]


@pytest.mark.parametrize("start", [0, 30])
async def test_draws_go_on_after_a_checkpoint_of_all_that_was_drawn_and_without_an_earlier_state(start):
    stream = Learnable().stream(Levels(), 7, start, in_flight=1)
    for group_id in range(start, start + 10):
        async with asyncio.timeout(60):
            task = await stream.draw()
        stream.observe(Group(group_id=group_id, task=task, start_version=0))
        saved = stream.state(group_id + 1)
    resumed = Learnable().stream(Levels(), 7, start + 10, in_flight=1, state=saved)
    assert await resumed.draw() == await stream.draw()


async def test_a_state_stays_what_it_was_while_tasks_are_drawn_on():
    """A checkpoint is written while the next steps go on."""

    def signal(task, group_id):
        return group_id % 2 == 0

    _, stream = await play(Learnable(), signal, 20, environment=Levels(6))
    early = stream.state(12)
    written = json.dumps(early)
    assert json.dumps(stream.state(20)) != written
    assert json.dumps(early) == written


async def test_a_state_of_another_sampler_is_the_users_mistake():
    with pytest.raises(UserError, match="another task_sampler"):
        Learnable().stream(Levels(), 0, 5, state={"seen": 3})


def test_without_exploration_it_is_refused():
    with pytest.raises(ValueError, match="explore 0"):
        Learnable(explore=0)
