"""What the loop asks of a run after each step: checks, measurements and checkpoints, as often as the recipe says."""

import asyncio

import pytest
from loop_fakes import FakeGenerator, FakeLearner, endless_tasks

from agentgym.loops.async_rl import Position, StepRecord, train
from agentgym.rl.config import LoopConfig
from agentgym.types import Episode, Group, Task


class NotedRun:
    """Notes what the loop asks of a run after its steps, and the version that the generators hold then."""

    def __init__(
        self,
        *,
        measures_ends: bool = True,
        checkpoints: bool = False,
        position: Position | None = None,
        **settings: int,
    ) -> None:
        self.config = LoopConfig(groups_per_step=1, group_size=2, **settings)
        self.position, self.measures_ends = position or Position(), measures_ends
        self.measures_checkpoints = checkpoints
        self.tasks, self.learner, self.generator = endless_tasks(), FakeLearner(), FakeGenerator(0.002)
        self.asked: list[tuple[object, ...]] = []
        self.recorded: dict[int, dict[str, float]] = {}

    async def measure_first(self) -> None:
        self.asked.append(("measure first",))

    async def start_steps(self) -> None:
        self.asked.append(("start",))

    async def play(self, task: Task, group_id: int, version: int) -> Group:
        episodes = [Episode(episode_id=str(group_id), task=task, seed=0)]
        return Group(group_id=group_id, task=task, start_version=version, episodes=episodes, advantages=[1.0])

    async def end_step(self, record: StepRecord, position: Position) -> dict[str, float]:
        assert (position.step, position.next_group) == (record.step, record.next_group)
        return {"step": float(record.step)}

    async def check_sync(self, step: int) -> dict[str, float]:
        self.asked.append(("check", step, self.generator.version))
        return {"sync": float(step)}

    async def evaluate(self, step: int, *, whole: bool) -> dict[str, float]:
        self.asked.append(("evaluate" + " whole" * whole, step, self.generator.version))
        return {"eval": float(step)}

    def record(self, record: StepRecord, metrics: dict[str, float]) -> None:
        self.recorded[record.step] = metrics

    async def save(self, position: Position, *, wait: bool) -> None:
        self.asked.append(("save", position.step, "whole" if wait else "copied"))

    async def answer_requests(self, position: Position, held: object) -> bool:
        return False

    def release(self, position: Position) -> None:
        self.asked.append(("over", position.step))

    async def end_without_signal(self, groups: list[Group], position_at: object) -> str:
        raise AssertionError("every group has signal")

    async def end(self, nothing_left: str) -> list[tuple[object, ...]]:
        return self.asked

    def asks(self, what: str) -> list[tuple[object, ...]]:
        return [more for first, *more in asyncio.run(asyncio.wait_for(train(self), 20)) if first == what]


def test_after_a_step_its_weights_are_checked_measured_and_saved_as_often_as_the_recipe_says():
    often = {"check_sync_every": 3, "eval_every": 2, "checkpoint_every": 4}
    asked = asyncio.run(train(run := NotedRun(steps=6, max_staleness=1, **often)))
    over = {step: asked.index(("over", step)) for step in range(1, 7)}
    after = {step: asked[over[step - 1] + 1 if step > 1 else 2 : over[step]] for step in over}
    assert asked[:2] == [("measure first",), ("start",)]
    assert after == {
        1: [],
        2: [("evaluate", 2, 2)],
        3: [("check", 3, 3)],
        4: [("evaluate", 4, 4), ("save", 4, "copied")],
        5: [],
        6: [("check", 6, 6), ("save", 6, "whole")],
    }
    assert run.recorded[2] == {"step": 2.0, "eval": 2.0} and run.recorded[3] == {"step": 3.0, "sync": 3.0}


@pytest.mark.parametrize(
    ("settings", "measured"),
    [
        ({}, []),
        ({"eval_every": 1}, [1, 2, 3]),
        ({"eval_every": 2}, [2]),
        ({"eval_every": 4}, []),
        ({"eval_every": 2, "measures_ends": False}, [2, 4]),
        ({"eval_every": 2, "position": Position(step=2, next_group=2)}, []),
        ({"eval_every": 3, "position": Position(step=2, next_group=2)}, [3]),
    ],
)
def test_the_last_step_is_measured_by_the_schedule_where_the_end_is_not(settings, measured):
    asked = NotedRun(steps=4, checkpoint_every=0, check_sync_every=0, **settings).asks("evaluate")
    assert [step for step, _ in asked] == measured


@pytest.mark.parametrize(("ends", "whole"), [(True, [2, 4]), (False, [2, 4, 5])])
def test_every_checkpoint_is_measured_on_all_tasks_once(ends, whole):
    run = NotedRun(steps=5, checkpoint_every=2, eval_every=3, measures_ends=ends, checkpoints=True)
    asked = asyncio.run(train(run))
    assert [step for what, step, *_ in asked[2:] if what == "evaluate whole"] == whole
    assert [step for what, step, *_ in asked[2:] if what == "evaluate"] == [3]


def test_without_a_schedule_the_last_step_alone_is_saved():
    assert NotedRun(steps=3, checkpoint_every=0).asks("save") == [[3, "whole"]]
    foreground = NotedRun(steps=2, checkpoint_every=1, checkpoint_in_background=False).asks("save")
    assert foreground == [[1, "whole"], [2, "whole"]]
