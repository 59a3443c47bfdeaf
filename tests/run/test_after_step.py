"""What a step leaves on the disk, and when: the loop waits for its episodes only where a checkpoint follows."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from open_runs import open_run

from agentgym.config import apply_overrides
from agentgym.loops.async_rl import Position, StepRecord
from agentgym.run.async_run import AsyncRun
from agentgym.run.control import THERE
from agentgym.run.layers import finish_recipe
from agentgym.runs.folder import RunFolder
from agentgym.runs.steering import Steering
from agentgym.testing import settle


class SlowFolder(RunFolder):
    """Writes episodes once `may` is set, and says so in `done`."""

    done: list[str]
    may: threading.Event

    def save_groups(self, *_: object) -> None:
        assert self.may.wait(20)
        self.done.append("episodes")


class Run:
    """An open run in such a folder."""

    def __init__(self, place: Path, *settings: str) -> None:
        self.done, self.may = list[str](), threading.Event()
        folder = self.folder = SlowFolder.create(place, "run")
        assert isinstance(folder, SlowFolder)
        folder.done, folder.may = self.done, self.may
        recipe = finish_recipe(apply_overrides({}, ["logging.trainer_logprobs=false", *settings]))[0]
        self.opened: AsyncRun = open_run(recipe, self.folder, self.done)

    async def step(self, number: int, *, saves: bool = False) -> None:
        """What the loop does after a step."""
        await self.opened.learner.step([])
        record = StepRecord(step=number, groups=[], skipped=[], staleness=[0], next_group=number, metrics={})
        position = Position(step=number, next_group=number)
        self.opened.record(record, await self.opened.end_step(record, position))
        if saves:
            await self.opened.save(position, wait=False)
        self.opened.release(position)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with closing((run := Run(tmp_path)).folder):
        yield run


async def test_the_next_step_begins_before_episodes_are_written_and_the_mark_comes_last(run: Run) -> None:
    await asyncio.wait_for(run.step(1), 10)
    assert run.done == [] and not run.opened.learner.lock.locked()
    run.may.set()
    await run.opened.session.background.done()
    assert run.done == ["episodes", "mark 1"]


async def test_a_checkpoint_follows_the_episodes_of_its_step(run: Run) -> None:
    ending = asyncio.create_task(run.step(2, saves=True))
    await asyncio.sleep(0.2)
    assert run.done == [] and not ending.done()
    run.may.set()
    await ending
    await run.opened.session.background.done()
    assert run.done == ["episodes", "checkpoint", "mark 2"]


async def test_no_step_ends_before_what_the_last_one_left_is_written(run: Run) -> None:
    await run.step(1)
    ending = asyncio.create_task(run.step(3))
    await asyncio.sleep(0.2)
    assert not ending.done()
    run.may.set()
    await ending
    await run.opened.session.background.done()
    assert run.done == ["episodes", "mark 1", "episodes", "mark 3"]


async def test_the_first_checkpoint_counts_while_the_first_evaluation_goes_on(run: Run, monkeypatch) -> None:
    async def evaluate(*_: object, **__: object) -> None:
        await settle()
        run.done.append("measured")

    monkeypatch.setattr(AsyncRun, "_evaluate", evaluate)
    await run.opened.measure_first()
    assert run.done == ["whole", "measured"]


@pytest.mark.parametrize(("at_end", "measured"), [(True, []), (False, [9])])
async def test_a_measure_asked_of_the_last_step_is_made_unless_the_run_ends_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_end: bool, measured: list[int]
) -> None:
    run, found = Run(tmp_path, "loop.steps=9", f"eval.at_end={at_end}"), list[int]()

    async def evaluate(self: AsyncRun, step: int, num_tasks: int | None = None) -> None:
        found.append(step)

    async def held() -> None:
        pass

    monkeypatch.setattr(AsyncRun, "_evaluate", evaluate)
    asked = Steering(run.folder.path)
    asked.ask("evaluate")
    with closing(run.folder):
        assert not await run.opened.answer_requests(Position(step=9, next_group=9), held)
    assert found == measured and [one.text for one in asked.read()] == ["" if measured else THERE]
