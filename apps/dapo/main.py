"""DAPO (arXiv:2503.14476) as a loop over services.

    python -m apps.dapo.main --config apps/dapo/math.yaml loop.steps=20

What makes it DAPO: prompts are sampled until enough of them have right and wrong answers (sec. 3.2, here), the clip is
wider above than below and the loss is a mean over tokens (sec. 3.1 and 3.3, `loss: dapo`), and answers near their limit
lose reward before they are cut (sec. 3.4, `advantage: soft_overlong`).
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Iterator

import agentgym
from agentgym.recipe import Recipe
from agentgym.run.services import Services
from agentgym.types import Group

STEPS_A_ROUND = 2  # optimizer steps on what one round of sampling gave; the paper takes 16


async def dapo(recipe: Recipe) -> None:
    """Decoupled Clip and Dynamic Sampling Policy Optimization, synchronous."""
    async with agentgym.services(recipe) as services:
        before = await services.evaluate(0)
        step = await train(services)
        after = await services.evaluate(step)
        await services.save(step)
        print(f"held-out success {before.shown} -> {after.shown}")


async def train(services: Services) -> int:
    """Returns the last step."""
    loop = services.recipe.loop
    numbers = itertools.count()
    step = 0
    while step < loop.steps:
        groups = await sample(services, numbers, STEPS_A_ROUND * loop.groups_per_step)
        if not groups:
            print(f"after step {step}: all answers to each of the last prompts earn the same; nothing is left to learn")
            break
        for first in range(0, len(groups), loop.groups_per_step):
            batch = groups[first : first + loop.groups_per_step]
            metrics = await services.trainer.train_step(batch)
            step += 1
            services.record(step, batch, metrics)
            if step == loop.steps:
                break
        await services.trainer.push_weights(step)
        await services.generator.update_weights(step)
    return step


async def sample(services: Services, numbers: Iterator[int], wanted: int) -> list[Group]:
    """Dynamic sampling: groups whose answers differ, as many as wanted, from loop.max_refills rounds at most."""
    kept: list[Group] = []
    for _ in range(services.recipe.loop.max_refills):
        tasks = [await services.dataset.sample() for _ in range(wanted)]
        played = await asyncio.gather(*(services.environment.play_group(task, next(numbers)) for task in tasks))
        kept += [group for group in played if group.has_signal]
        if len(kept) >= wanted:
            break
    return kept[:wanted]


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(dapo))
