"""A run of the loop in phases: at most so many versions of staleness for so many steps, and then with others.

    python benchmarks/loop_phases.py RECIPE... --name run --runs-dir RUNS --phases 0:8 1:12 3:12 idle:8

So what is compared runs in the same processes, which start and compile once. Each phase has more slots than the one
before it. `idle` comes last: nothing is trained in it. A step takes its groups and gives their slots back at once;
weights stay what they are. So as many requests are in flight as the slots allow, from its first step to its last:
`(staleness + 1) * loop.groups_per_step` groups, with the staleness of the phase before it or, alone, of the recipe.
No checkpoint is saved.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from finished_arms import run_job, stoppable

from agentgym.config import apply_overrides, to_mapping
from agentgym.recipe import Recipe
from agentgym.rl.loop import Learner, StepRecord, TrainingLoop
from agentgym.rollout.generator import Generator
from agentgym.run import train as train_job
from agentgym.run.checkpoints import Checkpoints
from agentgym.run.layers import finish_recipe
from agentgym.run.preempting import Turns
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.train import train
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter, Reporter
from agentgym.types import Completion, GenerateRequest, Group

IDLE = "idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """max_staleness: None is the phase in which nothing is trained."""

    max_staleness: int | None
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmoved:
    """Generators that keep their weights."""

    generator: Generator

    @property
    def version(self) -> int:
        return self.generator.version

    async def generate(self, request: GenerateRequest) -> Completion:
        return await self.generator.generate(request)

    async def update_weights(self, version: int) -> None:
        pass


class Idle:
    """A learner that changes nothing. Implements `Learner`."""

    async def step(self, groups: list[Group]) -> dict[str, float]:
        return {}

    async def publish(self, version: int) -> None:
        pass


class Unsaved(Checkpoints):
    """Writes none: the first one of a large model takes longer than its steps."""

    async def write(self, step: int) -> None:
        pass


def read_phase(text: str) -> Phase:
    """Raises ValueError."""
    staleness, _, steps = text.partition(":")
    return Phase(max_staleness=None if staleness == IDLE else int(staleness), steps=int(steps))


def check_phases(phases: Sequence[Phase]) -> None:
    """Raises ValueError where one has fewer slots than the one before it."""
    bounds = [phase.max_staleness for phase in phases]
    trained = [bound for bound in bounds if bound is not None]
    ordered = all(one < other for one, other in pairwise(trained)) and None not in bounds[:-1]
    if not phases or not ordered or min(phase.steps for phase in phases) < 1:
        raise ValueError(f"each phase has more staleness than the one before it, and `{IDLE}` is the last")


def in_phases(loop: TrainingLoop, phases: Sequence[Phase]) -> None:
    """Of a loop that has not run yet; it ends with the last phase."""
    check_phases(phases)
    ends = [*accumulate(phase.steps for phase in phases)]
    later = dict(zip(ends, phases[1:], strict=False))
    after = loop.after_step

    async def after_step(record: StepRecord) -> None:
        await after(record)
        if record.step == ends[-1]:
            loop.stopping = True
        elif (phase := later.get(record.step)) is not None:
            loosen(loop, phase)

    loop.after_step = after_step
    if phases[0].max_staleness is None:
        stop_training(loop)
    else:
        loop.config = replace(loop.config, max_staleness=phases[0].max_staleness)


def loosen(loop: TrainingLoop, phase: Phase) -> None:
    """Between two steps."""
    if phase.max_staleness is None:
        return stop_training(loop)
    wider = replace(loop.config, max_staleness=phase.max_staleness)
    for _ in range(wider.num_slots - loop.config.num_slots):
        loop._slots.put_nowait(loop.generator.version)
    loop.config = wider


def stop_training(loop: TrainingLoop) -> None:
    idle: Learner = Idle()
    loop.learner = Turns(idle, loop.learner.turn) if isinstance(loop.learner, Turns) else idle
    loop.generator = Unmoved(generator=loop.generator)
    loop.staleness_bound = sys.maxsize


def train_in_phases(
    recipe: Recipe, folder: RunFolder, reporter: Reporter, phases: Sequence[Phase]
) -> Coroutine[Any, Any, Any]:
    """As `train`, for the steps of the phases. No checkpoint is saved: not in this process from now on."""
    train_job.Checkpoints = Unsaved  # type: ignore[attr-defined,misc]
    steps = sum(phase.steps for phase in phases) + 1  # since the last would be saved
    recipe = replace(recipe, loop=replace(recipe.loop, steps=steps))
    return train(recipe, folder, reporter, change_loop=lambda loop: in_phases(loop, phases))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, help="as of `agentgym train`")
    parser.add_argument("--name", required=True)
    parser.add_argument("--runs-dir", required=True)
    parser.add_argument("--phases", nargs="+", type=read_phase, required=True, metavar="STALENESS:STEPS")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    arguments = parser.parse_args()
    phases: list[Phase] = arguments.phases
    try:
        check_phases(phases)
    except ValueError as error:
        parser.error(str(error))
    mapping, where = read_recipe_files(arguments.recipes) if arguments.recipes else ({}, "")
    fields = [*arguments.set, "eval.at_end=false"]
    most = max((phase.max_staleness for phase in phases if phase.max_staleness is not None), default=None)
    fields += [] if most is None else [f"loop.max_staleness={most}"]
    recipe, sources = finish_recipe(apply_overrides(mapping, fields), where=where)
    with stoppable(), RunFolder.create(arguments.runs_dir, arguments.name) as folder:
        folder.save_config(to_mapping(recipe), sources)
        run_job(train_in_phases(recipe, folder, PlainReporter(sys.stderr), phases))
        folder.set_status(RunStatus.DONE)


if __name__ == "__main__":
    main()
