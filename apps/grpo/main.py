"""GRPO, asynchronous, as a loop over services.

    python -m apps.grpo.main --config apps/grpo/math.yaml loop.steps=20 --trainer.procs 2
    python -m apps.grpo.main --resume runs/math-1 loop.steps=40

It trains as `agentgym train` does, without its steering: copy this file, and change it.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

import agentgym
from agentgym.recipe import Recipe
from agentgym.rl.loop import oldest_version
from agentgym.run.services import Services
from agentgym.types import Group, Task


async def grpo(recipe: Recipe, resume: Path | None = None) -> None:
    """Group Relative Policy Optimization: sample and train at the same time, with a bound on staleness."""
    async with agentgym.services(recipe, resume=resume) as services:
        done = await services.load()
        before = await services.evaluate(0)
        last = await train(services, done)
        after = await services.evaluate(last)
        print(f"held-out success {before.shown} -> {after.shown}")


async def train(services: Services, done: int) -> int:
    """The steps after `done`. Returns the last; it is earlier than loop.steps when no group has signal any more."""
    loop = services.recipe.loop
    slots = asyncio.Semaphore(loop.num_slots)  # one for each group that is sampled or waits to be trained
    playing: asyncio.Queue[asyncio.Task[Group]] = asyncio.Queue()

    async def play(task: Task, group_id: int) -> Group:
        group = await services.environment.play_group(task, group_id)
        if not group.has_signal:
            slots.release()  # at once: it will never be trained, so no later group has to wait for it
        return group

    async def sample(rollouts: asyncio.TaskGroup) -> None:
        for group_id in itertools.count(services.dataset.num_sampled):
            await slots.acquire()
            task = await services.dataset.sample()
            playing.put_nowait(rollouts.create_task(play(task, group_id)))

    async def collect(step: int) -> tuple[list[Group], list[Group]]:
        """Groups to train, in the order in which they began, and those that were skipped on the way."""
        groups: list[Group] = []
        skipped: list[Group] = []
        while len(groups) < loop.groups_per_step and len(skipped) < loop.max_refills * loop.groups_per_step:
            group = await (await playing.get())
            too_old = step - 1 - oldest_version(group) > loop.max_staleness  # after a step with few groups
            (groups if group.has_signal and not too_old else skipped).append(group)
            if group.has_signal and too_old:
                slots.release()
        return groups, skipped

    async with asyncio.TaskGroup() as rollouts:
        sampler = rollouts.create_task(sample(rollouts))
        for step in range(done + 1, loop.steps + 1):
            groups, skipped = await collect(step)
            if not groups:
                print(f"after step {done}: every group earns the same in all of its episodes, nothing is left to learn")
                if done not in services.folder.checkpoint_steps():
                    await services.save(done, next_task=skipped[-1].group_id + 1)
                break
            staleness = max(step - 1 - oldest_version(group) for group in groups)
            metrics = await services.trainer.train_step(groups)
            await services.trainer.push_weights(step)
            await services.generator.update_weights(step)
            for _ in groups:
                slots.release()  # only now: a group that began earlier could get too old
            services.record(step, groups, {**metrics, "loop/staleness_max": staleness}, skipped)
            last = step == loop.steps
            if last or (loop.checkpoint_every and step % loop.checkpoint_every == 0):
                next_task = max(group.group_id for group in [*groups, *skipped]) + 1
                await services.save(step, next_task=next_task, wait=last or not loop.checkpoint_in_background)
            done = step
        sampler.cancel()
        while not playing.empty():
            playing.get_nowait().cancel()
    return done


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(grpo))
