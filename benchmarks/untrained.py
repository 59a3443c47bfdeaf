"""A run of the loop in which nothing is trained: how fast groups are sampled when no slot waits for the trainer.

    python benchmarks/untrained.py RECIPE... --name alone --runs-dir RUNS --set loop.steps=20

A step takes its groups and gives their slots back at once; weights stay those of the start. So as many requests are in
flight as the slots allow, `(loop.max_staleness + 1) * loop.groups_per_step` groups, from the first step to the last.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

from finished_arms import stoppable

from agentgym.config import apply_overrides, to_mapping
from agentgym.jobs.layers import finish_recipe
from agentgym.jobs.preempting import Turns
from agentgym.jobs.recipe_files import read_recipe_files
from agentgym.jobs.train import train
from agentgym.rl.loop import Learner, TrainingLoop
from agentgym.rollout.generator import Generator
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter
from agentgym.types import Completion, GenerateRequest, Group


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


def stop_training(loop: TrainingLoop) -> None:
    """Of a loop that has not run yet."""
    idle: Learner = Idle()
    loop.learner = Turns(idle, loop.learner.turn) if isinstance(loop.learner, Turns) else idle
    loop.generator = Unmoved(generator=loop.generator)
    loop.staleness_bound = loop.config.steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", type=Path, help="as of `agentgym train`")
    parser.add_argument("--name", required=True)
    parser.add_argument("--runs-dir", required=True)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    arguments = parser.parse_args()
    mapping, where = read_recipe_files(arguments.recipes) if arguments.recipes else ({}, "")
    recipe, sources = finish_recipe(apply_overrides(mapping, arguments.set), where=where)
    with stoppable(), RunFolder.create(arguments.runs_dir, arguments.name) as folder:
        folder.save_config(to_mapping(recipe), sources)
        asyncio.run(train(recipe, folder, PlainReporter(sys.stderr), change_loop=stop_training))
        folder.set_status(RunStatus.DONE)


if __name__ == "__main__":
    main()
