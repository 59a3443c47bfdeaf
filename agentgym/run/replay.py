"""Trains a step of a run again, from its saved episodes and the checkpoint before it. Nothing in the run is changed."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from agentgym.errors import UserError, nearest
from agentgym.evals.replay import StepAgain, compare_step, judge_again
from agentgym.hooks import PluginRegistry
from agentgym.loops.async_rl import oldest_version
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.rollout.environments import build_environment
from agentgym.rollout.scoring import Scorer
from agentgym.run.engines import make_credit, runtime_of, trainer_setup
from agentgym.run.metrics import loop_metrics, rollout_metrics
from agentgym.run.settle import find_teacher
from agentgym.runs.changes import read_changes, values_at
from agentgym.runs.checkpoints import load_position
from agentgym.runs.folder import RunFolder
from agentgym.runs.metrics import MetricsRow
from agentgym.runs.records import restore_groups
from agentgym.runs.report import Reporter
from agentgym.runs.starts import Start, start_of
from agentgym.trainer.actor import TrainerActor
from agentgym.trainer.checkpoint import check
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.learner import TitanLearner
from agentgym.trainer.reference import BaseOfTrainer, ReferenceModel
from agentgym.types import Group

BOUNDS = {"float32": 1e-3, "bfloat16": 5e-2}  # relative, where the machine is another or a GPU
SETTINGS = ("loss", "optimizer", "trainer")  # of a start, that the numbers of a step depend on


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a step is trained again. checkpoint: the step whose weights and optimizer it begins with.

    recorded: the rows of the steps after it, to `step`. notes: what to know before.
    """

    folder: RunFolder
    step: int
    checkpoint: int
    start: Start
    recorded: Mapping[int, MetricsRow]
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> range:
        return range(self.checkpoint + 1, self.step + 1)


@dataclass(slots=True, kw_only=True)
class Replay:
    """steps: those after the checkpoint, the one that was asked for last. changed: its figures with other settings.

    machine: of this time. same_machine: as the run's. bound: of what the device computed.
    """

    plan: Plan
    machine: Mapping[str, str]
    same_machine: bool
    bound: float
    steps: list[StepAgain] = field(default_factory=list)
    changed: dict[str, float] | None = None

    @property
    def is_equal(self) -> bool:
        return all(step.is_equal for step in self.steps)

    @property
    def holds(self) -> bool:
        """Whether every figure is within the bound."""
        return not any(step.beyond(self.bound) for step in self.steps)


def plan_replay(folder: RunFolder, step: int, from_step: int | None = None) -> Plan:
    """from_step: of the checkpoint to begin with; the nearest one before `step` otherwise.

    Raises UserError with what is missing.
    """
    if "sft" in folder.load_config():
        raise UserError(f"{folder.path} is a run of `agentgym sft`; only steps of `agentgym train` have saved episodes")
    rows = {row.step: row for row in folder.read_metrics()}
    if step not in rows:
        done = f"steps {min(rows)} to {max(rows)}" if rows else "none"
        raise UserError(f"{folder.path} has no figures of step {step}; finished are: {done}")
    saved = folder.checkpoint_steps()
    if from_step is not None and (from_step not in saved or from_step >= step):
        before = [str(one) for one in saved if one < step]
        raise UserError(
            f"--from-step: no checkpoint of step {from_step} before step {step}.{nearest(str(from_step), before)}"
        )
    checkpoint = _checkpoint(folder, step) if from_step is None else from_step
    known = set(folder.episode_steps())
    if missing := [str(one) for one in range(checkpoint + 1, step + 1) if one not in known or one not in rows]:
        raise UserError(
            f"step {step} can't be trained again: the checkpoint before it is of step {checkpoint}, and no episodes "
            f"are saved of step(s) {', '.join(missing)} (logging.save_episodes, loop.checkpoint_every)"
        )
    start, notes = start_of(folder, step), []
    if step - checkpoint > 1:
        notes.append(
            f"steps {checkpoint + 1} to {step - 1} are trained first: the checkpoint before is of step {checkpoint}"
        )
    if start.step > checkpoint and _settings(start_of(folder, checkpoint + 1)) != _settings(start):
        notes.append(
            f"the run was resumed at step {start.step} with other settings; the steps before are trained with those of "
            f"step {step}, so they will differ"
        )
    if not start.machine:
        notes.append("the run did not record its machine, so equal figures are not expected")
    recorded = {one: rows[one] for one in range(checkpoint + 1, step + 1)}
    return Plan(folder=folder, step=step, checkpoint=checkpoint, start=start, recorded=recorded, notes=tuple(notes))


async def replay(
    plan: Plan,
    recipe: Recipe,
    reporter: Reporter,
    *,
    changed: Recipe | None = None,
    registry: PluginRegistry,
    bound: float | None = None,
) -> Replay:
    """Train the plan's steps again with `recipe`, and the last one once more with what `changed` changes of it.

    changed: its loss, advantage and rewards count. bound: relative; by default 0 on a CPU of the run's machine.
    """
    with tempfile.TemporaryDirectory(prefix="agentgym-replay-") as name:
        scratch, folder = Path(name), plan.folder
        model = resolve_model(recipe.model.path, scratch, random_weights=recipe.model.random_weights)
        before = folder.checkpoint_dir(plan.checkpoint) / "trainer"
        check(str(before), str(model), step=plan.checkpoint)
        async with trainer_processes(recipe, str(model), scratch, reporter) as (trainer, learner):
            await trainer.call(TrainerActor.load, str(before))
            result = _result(plan, recipe, await trainer.call(TrainerActor.get_machine), bound)
            for step in plan.steps:
                if step == plan.step and changed is not None and step - 1 > plan.checkpoint:
                    before = scratch / "before"
                    await trainer.call(TrainerActor.save, str(before))
                trained, skipped = restore_groups(folder.read_episodes(step))
                await trainer.call(TrainerActor.hold_version, step - 1)
                await trainer.call(TrainerActor.set_rate, rate_at(folder, step, recipe.optimizer.lr))
                figures = await _figures(learner, step, trained, skipped)
                result.steps.append(compare_step(step, plan.recorded[step].metrics, figures))
                reporter.step(step, plan.step, figures)
        if changed is None:
            return result
        trained, skipped = await _regrouped(plan, recipe, changed, registry)
        if not trained:
            reporter.note("with these settings no group of the step has signal, so nothing would have been trained")
            result.changed = rollout_metrics([episode for group in skipped for episode in group.episodes])
            return result
        async with trainer_processes(changed, str(model), scratch, reporter) as (trainer, learner):
            await trainer.call(TrainerActor.load, str(before))
            await trainer.call(TrainerActor.hold_version, plan.step - 1)
            result.changed = await _figures(learner, plan.step, trained, skipped)
    return result


@asynccontextmanager
async def trainer_processes(
    recipe: Recipe, model_path: str, scratch: Path, reporter: Reporter
) -> AsyncIterator[tuple[TrainerClient, TitanLearner]]:
    """A trainer as the run's, and a reference model where the loss needs one."""
    reporter.phase(f"starting {recipe.trainer.procs} trainer process(es)")
    setup = trainer_setup(recipe, Path(model_path), scratch / "trainer")
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(runtime_of(recipe, scratch, Path(model_path), reporter.note))
        trainer = TrainerClient(setup, runtime=runtime)
        reference: ReferenceModel | BaseOfTrainer | None = BaseOfTrainer(trainer) if recipe.needs_reference else None
        stack.push_async_callback(trainer.close)
        await trainer.start()
        if recipe.needs_reference_model:
            reference = ReferenceModel(setup, runtime=runtime)
            stack.push_async_callback(reference.close)
            await reference.start()
        credit = make_credit(recipe.advantage, find_teacher(recipe, Path(model_path), scratch), setup, runtime)
        if credit.teacher is not None:
            stack.push_async_callback(credit.teacher.close)
            await credit.teacher.start()
        weights = recipe.rollout.branch_weights
        learner = TitanLearner(
            trainer=trainer, reference=reference, credit=credit, activity=Activity(), branch_weights=weights
        )
        yield trainer, learner


def rate_at(folder: RunFolder, step: int, given: float) -> float:
    """optimizer.lr of a step, where it was changed while the run went on; else the given one."""
    found = values_at([one for one in read_changes(folder.path) if one.setting == "optimizer.lr"], step - 1)
    return float(found.get("optimizer.lr", given))


async def _figures(learner: TitanLearner, step: int, trained: list[Group], skipped: list[Group]) -> dict[str, float]:
    """The figures as the run records them, without those that depend on time."""
    episodes = [episode for group in [*trained, *skipped] for episode in group.episodes]
    staleness = [step - 1 - oldest_version(group) for group in trained]
    return {**rollout_metrics(episodes), **loop_metrics(trained, skipped, staleness), **await learner.step(trained)}


async def _regrouped(
    plan: Plan, recipe: Recipe, changed: Recipe, registry: PluginRegistry
) -> tuple[list[Group], list[Group]]:
    saved = list(plan.folder.read_episodes(plan.step))
    if changed.advantage == recipe.advantage and dict(changed.rewards) == dict(recipe.rewards):
        return restore_groups(saved)
    if dict(changed.rewards) == dict(recipe.rewards):
        return await judge_again(
            saved, scorer=None, advantage=changed.advantage, num_groups=recipe.loop.groups_per_step
        )
    environment = build_environment(registry, changed.env.name, changed.env.options)
    async with Scorer.of(environment, registry, changed.rewards) as scorer:
        return await judge_again(
            saved, scorer=scorer, advantage=changed.advantage, num_groups=recipe.loop.groups_per_step
        )


def _result(plan: Plan, recipe: Recipe, machine: Mapping[str, str], bound: float | None) -> Replay:
    same = dict(machine) == dict(plan.start.machine)
    if bound is None:
        bound = 0.0 if same and machine["device"] == "cpu" else BOUNDS[recipe.trainer.dtype]
    return Replay(plan=plan, machine=machine, same_machine=same, bound=bound)


def _checkpoint(folder: RunFolder, step: int) -> int:
    """The nearest finished one before a step."""
    steps = [one for one in folder.checkpoint_steps() if one < step and load_position(folder, one)]
    if not steps:
        raise UserError(
            f"step {step} can't be trained again: {folder.path} has no finished checkpoint before it "
            "(loop.keep_checkpoints: 0 keeps all)"
        )
    return steps[-1]


def _settings(start: Start) -> list[object]:
    return [start.config.get(name) for name in SETTINGS]
