"""Checkpoints that are written while steps go on count once they are whole, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import draw_samples, write_model

from agentgym.actors.process_group import ProcessDied
from agentgym.loops.async_rl import Position
from agentgym.rollout.activity import Activity
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.in_flight import InFlight
from agentgym.run.resume import RunState, read_position
from agentgym.runs.folder import RunFolder
from agentgym.trainer import saving
from agentgym.trainer.checkpoint import check
from tests.open_runs import Idle
from tests.trainer.gated_writer import Gate
from tests.trainer.test_keeper import InThisProcess, Plan


@dataclass
class Run:
    """As a training job is between two steps."""

    folder: RunFolder
    trainer: InThisProcess
    state: RunState = field(default_factory=RunState)
    notes: list[str] = field(default_factory=list)
    checkpoints: Checkpoints = field(init=False)

    def __post_init__(self) -> None:
        self.checkpoints = Checkpoints(
            folder=self.folder,
            state=self.state,
            trainer=self.trainer,
            reference=None,
            in_flight=InFlight(folder=self.folder, rollouts=Idle(), pinned=False),
            activity=Activity(),
            keep=1,
            note=self.notes.append,
        )

    async def step(self) -> Position:
        """Train one, and have settled what is written."""
        await self.trainer.train_step(draw_samples(3, seed=self.trainer.step + 1))
        self.folder.append_metrics(self.trainer.step, {})
        await self.checkpoints.settle()
        return Position(step=self.trainer.step, next_group=4 * self.trainer.step)

    def known(self) -> tuple[list[int], list[int], int]:
        """Whole checkpoints, steps in the journal, and the step that a resume would begin at."""
        position = read_position(self.folder.load_state()["position"])
        return self.folder.checkpoint_steps(), self.trainer.journal.steps(), position.step

    async def weights(self) -> dict[str, torch.Tensor]:
        return {name: weight.clone() for name, weight in self.trainer.engine.hf_weights()}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(saving, "FileSystemWriter", gate.writer())
    gate.open.set()
    return gate


@pytest.fixture
def make_run(model_path: str, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[RunFolder] = []

    async def make(name: str = "run", plan: Plan | None = None) -> Run:
        made.append(RunFolder.create(tmp_path, name))
        run = Run(made[-1], InThisProcess(model_path, made[-1].path, plan or {}))
        await run.trainer.start()
        await run.checkpoints.save(Position())
        return run

    yield make
    for folder in made:
        folder.close()


async def test_one_counts_when_it_is_whole_and_the_journal_keeps_its_steps_until_then(
    make_run: Callable[..., Any], model_path: str, gate: Gate
) -> None:
    run = await make_run()
    position = await run.step()
    gate.open.clear()
    await run.checkpoints.begin(position)
    await run.step()
    assert run.known() == ([0], [1, 2], 0) and run.checkpoints.metrics() == {}
    gate.open.set()
    run.trainer.engine.saver._thread.join()
    await run.step()
    assert run.known() == ([1], [2, 3], 1), "step 0 was removed, as keep_checkpoints says"
    assert run.checkpoints.metrics()["checkpoint/write_s"] > 0 and run.checkpoints.metrics() == {}
    check(str(run.folder.checkpoint_dir(1) / "trainer"), model_path, step=1)
    check(str(run.folder.checkpoint_dir(1) / "hf"), model_path)


async def test_the_next_save_and_the_end_wait_for_the_one_under_way(make_run: Callable[..., Any], gate: Gate) -> None:
    run = await make_run()
    gate.open.clear()
    await run.checkpoints.begin(await run.step())
    position = await run.step()
    second = asyncio.create_task(run.checkpoints.begin(position))
    await asyncio.sleep(0.2)
    assert not second.done() and run.known() == ([0], [1, 2], 0)
    gate.open.set()
    await second
    assert run.known()[2] == 1 and run.checkpoints.metrics()["checkpoint/wait_s"] > 0.1
    position = await run.step()
    await run.checkpoints.save(position)
    assert run.known() == ([3], [], 3) and run.notes == []


async def test_the_step_that_is_being_written_is_not_written_twice(make_run: Callable[..., Any], gate: Gate) -> None:
    run = await make_run()
    position = await run.step()
    await run.checkpoints.begin(position)
    await run.checkpoints.save(position)
    assert run.known() == ([1], [], 1)
    assert (run.trainer.counts["save"], run.trainer.counts["begin_save"]) == (1, 1)


async def test_its_position_is_that_of_its_step_whatever_the_tasks_have_learned_since(
    make_run: Callable[..., Any], gate: Gate
) -> None:
    run, learned = await make_run(), [1]
    await run.checkpoints.begin(replace(await run.step(), tasks=learned))
    learned.append(2)
    await run.checkpoints.finish()
    assert run.checkpoints.state.position.tasks == [1]


async def test_a_full_disk_ends_the_run_at_the_next_step_with_what_it_had_before(
    make_run: Callable[..., Any], gate: Gate
) -> None:
    run = await make_run()
    position, gate.full = await run.step(), True
    await run.checkpoints.begin(position)
    run.trainer.engine.saver._thread.join()
    with pytest.raises(OSError, match="No space left on device"):
        await run.step()
    assert run.known() == ([0], [1, 2], 0)


async def test_a_trainer_that_dies_while_it_writes_comes_back_with_its_weights_and_the_run_goes_on(
    make_run: Callable[..., Any], gate: Gate
) -> None:
    found = {}
    for name, plan in (("unhurt", {}), ("hurt", {("train_step", 3, "after"): ProcessDied})):
        run = await make_run(name, plan)
        await run.step()
        position = await run.step()
        gate.open.clear()
        await run.checkpoints.begin(position)
        if plan:
            lost = run.trainer.engine.saver._thread
            await run.step()
            assert lost.is_alive() and run.trainer.restarts == 1
            assert run.known() == ([0], [1, 2, 3], 0) and not run.folder.checkpoint_dir(2).exists()
            assert run.notes == ["the checkpoint of step 2 was lost with the trainer that wrote it"]
        else:
            await run.step()
        gate.open.set()
        await run.checkpoints.save(await run.step())
        assert run.known() == ([4], [], 4)
        found[name] = await run.weights()
    assert all(torch.equal(weight, found["unhurt"][name]) for name, weight in found["hurt"].items())


async def test_a_run_that_must_save_saves_again_what_was_lost(make_run: Callable[..., Any], gate: Gate) -> None:
    run = await make_run(plan={("finish_save", 1, "before"): ProcessDied})
    position = await run.step()
    await run.checkpoints.begin(position)
    await run.checkpoints.save(position)
    assert run.trainer.restarts == 1 and run.known() == ([1], [], 1)
