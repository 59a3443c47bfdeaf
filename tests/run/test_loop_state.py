"""A loop of one's own that was stopped goes on with the tasks, groups and rows that it would have had."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentgym.env import Environment
from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.hooks import PluginRegistry
from agentgym.loops.pieces import Pieces
from agentgym.models.tiny import policy_path
from agentgym.recipe import Recipe
from agentgym.rl.config import LoopConfig
from agentgym.rollout.activity import Activity
from agentgym.rollout.learnable import Learnable
from agentgym.rollout.tasks import Shuffled, TaskSampler
from agentgym.run.background import Background
from agentgym.run.calls import BufferCalls, DatasetCalls
from agentgym.run.checkpoints import CheckpointWriter
from agentgym.run.engines import Engines
from agentgym.run.loop_state import FILE, find_saved
from agentgym.run.metrics import StepClock
from agentgym.run.resume import StartPoint
from agentgym.run.services import Services, TrainerCalls
from agentgym.run.session import Session
from agentgym.run.settle import Settled
from agentgym.run.sinks import Sinks
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import PlainReporter
from agentgym.trainer.actor import TrainerActor, TrainerStatus
from agentgym.trainer.checkpoint import write_manifest
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.journal import Journal
from agentgym.types import Group, Task

SLOTS = 2
RECIPE = Recipe(loop=LoopConfig(groups_per_step=2, group_size=2, max_staleness=3, seed=5))


class Numbers(Environment[None]):
    """A task for each number; those of difficulty 2 have signal."""

    name = "numbers"
    rewards = {"success": 1.0}

    def tasks(self, split: str, seed: int = 0) -> Any:
        return (Task(task_id=str(n % 7), prompt=(), difficulty=1 + n % 2) for n in itertools.count())


def dataset(sampler: TaskSampler) -> DatasetCalls:
    return DatasetCalls(
        lambda start, state: sampler.stream(Numbers(), 3, start, in_flight=SLOTS, state=state), in_flight=SLOTS
    )


def played(task: Task) -> Group:
    group = Group(group_id=-1, task=task, start_version=0)  # a loop may number its groups as it likes
    group.advantages = [float(task.difficulty == 2)]
    return group


class FakeTrainer:
    """Keeps how often it was stepped, as a checkpoint of a trainer does."""

    def __init__(self, journal: Journal) -> None:
        self.steps = self.step = 0
        self.pushed: list[int] = []
        self.saved_at: list[tuple[int, Path]] = []
        self.journal = journal
        self.copied: tuple[str, int] | None = None
        self.written = False  # of what was copied

    async def call(self, method: object, *args: str) -> object:
        if method is TrainerActor.get_status:
            return TrainerStatus(rank=0, pid=1, step=self.steps, version=0)
        if method is TrainerActor.save:
            self._write(args[0], self.steps)
        elif method is TrainerActor.begin_save:
            self.copied, self.written = (args[0], self.steps), False
        elif method is TrainerActor.finish_save and self.copied is not None:
            self._write(*self.copied)
            return {"checkpoint/write_s": 1.0}
        return None

    async def call_all(self, method: object) -> list[bool]:
        return [self.written]

    def _write(self, name: str, steps: int) -> None:
        folder = Path(name)
        folder.mkdir(parents=True)
        write_manifest(folder, step=steps, architecture=read_architecture(policy_path()), lora=LoraConfig())

    async def resume(self, step: int, checkpoint: Path, *, until: int) -> None:
        assert checkpoint.is_dir() and step == until
        self.steps = self.step = step

    async def push_weights(self, version: int) -> None:
        self.pushed.append(version)

    def saved(self, step: int, checkpoint: Path) -> None:
        self.saved_at.append((step, checkpoint))


class FakeLearner:
    """Trains on anything."""

    async def step(self, groups: list[Group]) -> dict[str, float]:
        return {}

    async def publish(self, version: int) -> None:
        raise AssertionError("no loop publishes here")


class FakeGenerator:
    """Remembers the versions that it loaded."""

    def __init__(self) -> None:
        self.loaded: list[int] = []

    async def update_weights(self, version: int) -> None:
        self.loaded.append(version)


class Rows:
    """Counts, as a stream of rows that a process reads."""

    def __init__(self) -> None:
        self.next = 0

    async def sample(self) -> int:
        self.next += 1
        return self.next

    async def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    async def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def services(folder: RunFolder, sampler: TaskSampler, *, rows: bool = True) -> Services:
    trainer, learner = FakeTrainer(Journal(folder.path / "journal")), FakeLearner()
    engines: dict[str, Any] = {"trainer": trainer, "learner": learner, "generator": FakeGenerator()}
    checkpoints = CheckpointWriter(folder=folder, trainer=trainer, activity=Activity(), note=print)  # type: ignore[arg-type]
    session = Session(
        settled=Settled(recipe=RECIPE, registry=PluginRegistry([]), model_path=policy_path()),
        folder=folder,
        reporter=PlainReporter(sys.stdout),
        start=StartPoint(),
        gym=None,  # type: ignore[arg-type]
        sinks=Sinks(),
        background=Background(),
        engines=Engines(**engines, player=None, rollouts=None, reference=None, store=None),  # type: ignore[arg-type]
    )
    made: dict[str, Any] = {
        "session": session,
        "dataset": dataset(sampler),
        "trainer": TrainerCalls(learner, trainer, checkpoints, Sinks(), RECIPE.advantage),  # type: ignore[arg-type]
        "replay_buffer": BufferCalls.of(RECIPE.loop, Pieces(replay_buffer={"max_policy_age": None})),
        "rows": Rows() if rows else None,
        "checkpoints": checkpoints,
        "_clock": StepClock(Activity()),
    }
    return Services(**made, environment=None, rewards=None, generator=None, reference=None)  # type: ignore[arg-type]


async def step(made: Services, number: int) -> tuple[list[str], list[int], int]:
    """What one step of a loop drew: tasks, numbers of groups from the buffer, a row."""
    tasks = []
    for _ in range(3):
        task = await made.dataset.sample()
        made.dataset.observe(group := played(task))
        group.group_id = made.dataset.num_sampled
        await made.replay_buffer.add(group, number)
        tasks.append(task.task_id)
    batch = await made.replay_buffer.sample(number)
    made.session.engines.trainer.steps += 2  # type: ignore[attr-defined]
    assert batch is not None and made.rows is not None
    return tasks, [group.group_id for group in batch], await made.rows.sample()  # type: ignore[return-value]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("sampler", [Shuffled(), Learnable(candidates=3, explore=0.2)])
async def test_a_loop_that_goes_on_draws_what_the_unstopped_one_draws(
    tmp_path: Path, sampler: TaskSampler, wait: bool
) -> None:
    with RunFolder.create(tmp_path, "unstopped") as folder:
        unstopped = services(folder, sampler)
        wanted = [await step(unstopped, number) for number in range(1, 7)]
    with RunFolder.create(tmp_path, "stopped") as folder:
        first = services(folder, sampler)
        assert await first.load() == 0
        assert [await step(first, number) for number in (1, 2, 3)] == wanted[:3]
        trainer: Any = first.session.engines.trainer
        assert await first.save(3, wait=wait) == folder.checkpoint_dir(3)
        folder.append_metrics(4, {"train/loss": 1.0})
        await step(first, 4)  # which the resumed one makes again
        await first.trainer.train_step([])
        assert bool(trainer.saved_at) == wait, "it is not written yet"
        trainer.written = True
        await first.trainer.train_step([])
        assert trainer.saved_at == [(0, folder.checkpoint_dir(3) / "trainer")]
        second = services(folder, sampler)
        assert await second.load() == 3
        assert [await step(second, number) for number in (4, 5, 6)] == wanted[3:]
        assert folder.read_metrics() == [] and second.session.engines.trainer.steps == 12  # type: ignore[attr-defined]
        assert second.session.engines.trainer.pushed == second.session.engines.generator.loaded == [3]  # type: ignore[attr-defined]
        with pytest.raises(UserError, match="before the first step, and this loop has made 12"):
            await second.load()
        with pytest.raises(UserError, match="no measure of the weights after step 0"):
            await second.evaluate(0)


@pytest.mark.parametrize("sampler", [Shuffled(), Learnable(candidates=3, explore=0.2)])
async def test_a_loop_that_samples_ahead_goes_on_at_the_first_task_that_no_step_took(sampler: TaskSampler) -> None:
    async def drawn(made: DatasetCalls, count: int) -> list[str]:
        ids = []
        for _ in range(count):
            task = await made.sample()
            made.end(made.begin(task), played(task))
            ids.append(task.task_id)
        return ids

    ahead = dataset(sampler)
    wanted = await drawn(ahead, 12)
    again = dataset(sampler)
    again.load_state_dict(ahead.state_dict(10))
    assert again.num_sampled == 10 and await drawn(again, 2) == wanted[10:]
    with pytest.raises(UserError, match="next_task is 13, and 12 tasks were sampled"):
        ahead.state_dict(13)


async def test_a_sampler_that_learns_waits_for_no_task_that_nobody_plays() -> None:
    made = dataset(Learnable(candidates=3))
    tasks = [await made.sample() for _ in range(SLOTS + 1)]
    with pytest.raises(UserError, match="3 tasks were sampled and not played"):
        await made.sample()
    with pytest.raises(UserError, match="task 0 before next_task 3 was not"):
        made.state_dict()
    made.end(made.begin(tasks[0]), played(tasks[0]))
    assert await made.sample()
    plain = dataset(Shuffled())
    assert len([await plain.sample() for _ in range(9)]) == 9


def damage_pickle(checkpoint: Path) -> None:
    (checkpoint / FILE).write_bytes(b"no pickle")


def forget_trainer(checkpoint: Path) -> None:
    (checkpoint / "trainer" / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_pickle, "can't be read"), (forget_trainer, "not finished"), (lambda at: (at / FILE).unlink(), FILE)],
)
async def test_a_checkpoint_that_is_not_whole_is_skipped_with_a_line(
    tmp_path: Path, damage: Callable[[Path], None], message: str
) -> None:
    said: list[str] = []
    with RunFolder.create(tmp_path, "run") as folder:
        made = services(folder, Shuffled())
        assert find_saved(folder, None, policy_path(), said.append) is None
        await made.save(1)
        await step(made, 1)
        await made.save(2)
        damage(folder.checkpoint_dir(2))
        found = find_saved(folder, None, policy_path(), said.append)
        assert found is not None and found[0] == 1 and found[1].dataset["next_task"] == 0
        assert len(said) == 1 and "step 2 is skipped" in said[0] and message in said[0]
        with pytest.raises(UserError, match=rf"(?s)no whole checkpoint.*{message}"):
            find_saved(folder, 2, policy_path(), said.append)
        with pytest.raises(UserError, match="no checkpoint of step 7"):
            find_saved(folder, 7, policy_path(), said.append)
        with pytest.raises(UserError, match="give the same pieces"):
            await services(folder, Shuffled(), rows=False).load()


@pytest.mark.parametrize("wait", [True, False])
async def test_what_cannot_be_pickled_is_said_when_it_is_to_be_saved(tmp_path: Path, wait: bool) -> None:
    with RunFolder.create(tmp_path, "run") as folder:
        made = services(folder, Shuffled())
        await made.replay_buffer.add(lambda: None, 0)
        with pytest.raises(UserError, match="can't be saved"):
            await made.save(1, wait=wait)
