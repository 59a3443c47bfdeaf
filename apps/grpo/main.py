"""GRPO, asynchronous, as a loop over services.

    python -m apps.grpo.main --config apps/grpo/math.yaml loop.steps=20 --trainer.procs 2

It trains as `agentgym train` does, without its checkpoints on the way, resume and sinks: copy this file, and change it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import agentgym
from agentgym.jobs.services import Services
from agentgym.recipe import Recipe
from agentgym.rl.loop import oldest_version
from agentgym.types import Group


async def grpo(recipe: Recipe) -> None:
    """Group Relative Policy Optimization: sample and train at the same time, with a bound on staleness."""
    async with agentgym.services(recipe) as services:
        before = await services.evaluate(0)
        await train(services)
        after = await services.evaluate(recipe.loop.steps)
        await services.save(recipe.loop.steps)
        print(f"held-out success {before.success:.3f} -> {after.success:.3f}")


async def train(services: Services) -> None:
    loop = services.recipe.loop
    slots = asyncio.Semaphore(loop.num_slots)  # one for each group that is sampled or waits to be trained
    playing: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()

    async def sample(rollouts: asyncio.TaskGroup) -> None:
        for group_id in itertools.count():
            await slots.acquire()
            task = await services.dataset.sample()
            playing.put_nowait(rollouts.create_task(services.environment.play_group(task, group_id)))

    async def collect() -> list[Group]:
        groups: list[Group] = []
        while len(groups) < loop.groups_per_step:
            group = await (await playing.get())  # in the order in which they began
            if group.has_signal:
                groups.append(group)
            else:
                slots.release()
        return groups

    async with asyncio.TaskGroup() as rollouts:
        sampler = rollouts.create_task(sample(rollouts))
        for step in range(1, loop.steps + 1):
            groups = await collect()
            staleness = max(step - 1 - oldest_version(group) for group in groups)
            metrics = await services.trainer.train_step(groups)
            await services.trainer.push_weights(step)
            await services.generator.update_weights(step)
            for _ in groups:
                slots.release()  # only now: a group that began earlier could get too old
            services.record(step, groups, {**metrics, "loop/staleness_max": staleness})
        sampler.cancel()
        while not playing.empty():
            playing.get_nowait().cancel()


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(grpo))
