"""Measures many checkpoints of a run on the same held-out tasks, in the run's own folder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from agentgym.errors import UserError
from agentgym.evals.checkpoints import Point, measured, plays_other
from agentgym.evals.play import EvalSetup
from agentgym.models.resolve import weights_mark
from agentgym.rollout.garbage import swept
from agentgym.rollout.tasks import held_out_tasks
from agentgym.run.ending import checkpoint_name
from agentgym.run.engines import started_generators
from agentgym.run.evaluate import measure
from agentgym.run.gym import Gym
from agentgym.run.settle import Settled
from agentgym.run.sinks import open_sinks
from agentgym.run.watchdog import watched
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.weights.config import WeightsConfig
from agentgym.weights.select import SharedMemoryConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """setup: what each of the points was measured on."""

    setup: EvalSetup
    points: tuple[Point, ...]


async def evaluate_checkpoints(settled: Settled, folder: RunFolder, reporter: Reporter, steps: Sequence[int]) -> Curve:
    """Measure the checkpoints that no finished evaluation covers, each saved as the run's own evaluation of its step.

    The generators start once and load one checkpoint after the other; on other hosts they start again for each. What
    an interrupted call has played is not played again. Raises UserError for an evaluation with which these can't be
    compared, and what `evaluate` raises.
    """
    config = settled.recipe.eval
    async with AsyncExitStack() as stack:
        gym = await Gym.open(settled, reporter, training=False)
        stack.push_async_callback(gym.close)
        tasks = held_out_tasks(gym.environment, config.tasks)
        setup = EvalSetup.of(
            gym.environment, tasks, samples_per_task=config.samples_per_task, seed=config.seed, greedy=config.greedy
        )
        for step in steps:
            if other := plays_other(folder, step, setup):
                raise UserError(
                    f"{folder.path} has an evaluation of step {step} with {other}, which this one would replace. "
                    f"Measure that checkpoint alone: agentgym eval {folder.path}/checkpoints/{checkpoint_name(step)}"
                )
        marks = {step: weights_mark(folder.checkpoint_dir(step) / "hf") for step in steps}
        todo = [step for step in steps if measured(folder, step, setup, marks[step]) is None]
        if len(todo) < len(steps):
            reporter.note(f"{len(steps) - len(todo)} of {len(steps)} checkpoints were measured before")
        sinks = await stack.enter_async_context(open_sinks(settled, folder.path, for_episodes=True))
        await stack.enter_async_context(swept())
        logs = folder.path / "evaluation" / "logs"  # those of the training stay
        logs.mkdir(parents=True, exist_ok=True)
        await stack.enter_async_context(watched(gym.activity, logs=logs))
        swaps = not settled.recipe.launcher.transport()
        for part in [todo] * bool(todo) if swaps else [[step] for step in todo]:
            first = _settled_for(settled, folder.checkpoint_dir(part[0]) / "hf", swaps=swaps)
            name = f"{folder.name}-evaluation"
            async with started_generators(first, reporter, name=name, log_dir=logs, activity=gym.activity) as generator:
                for step in part:
                    if swaps and step:
                        await generator.load_folder(step, folder.checkpoint_dir(step) / "hf")
                    result = await measure(
                        gym,
                        gym.player(generator),
                        folder,
                        reporter,
                        sinks,
                        step=step,
                        name=checkpoint_name(step),
                        weights=marks[step],
                        resume=True,
                    )
                    reporter.note(f"step {step}: {result.shown} ({steps.index(step) + 1} of {len(steps)})")
        points = (measured(folder, step, setup, marks[step]) for step in steps)
        return Curve(setup=setup, points=tuple(point for point in points if point is not None))


def _settled_for(settled: Settled, model: Path, *, swaps: bool) -> Settled:
    weights = WeightsConfig(store=SharedMemoryConfig()) if swaps else settled.recipe.weights
    return replace(settled, recipe=replace(settled.recipe, weights=weights), model_path=model)
