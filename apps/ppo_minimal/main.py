"""PPO (arXiv:1707.06347) in as few lines as it takes: play, take a few clipped steps on what was played, repeat.

    python -m apps.ppo_minimal.main --config apps/ppo_minimal/math.yaml loop.steps=20

The values of the critic, the advantages from them (`advantage: gae_tokens`) and the clipped loss (`loss: ppo_clip`)
come from the recipe. The ratio is against the sampler, whose log-probabilities are those before the first of the steps.
"""

from __future__ import annotations

import asyncio
import sys

import agentgym
from agentgym.recipe import Recipe

EPOCHS = 2  # optimizer steps on the same episodes


async def ppo(recipe: Recipe) -> None:
    """Proximal Policy Optimization with a critic, synchronous."""
    loop = recipe.loop
    async with agentgym.services(recipe) as services:
        before = await services.evaluate(0)
        for step in range(EPOCHS, loop.steps + 1, EPOCHS):
            tasks = [await services.dataset.sample() for _ in range(loop.groups_per_step)]
            playing = (
                services.environment.play_group(task, loop.groups_per_step * step + i) for i, task in enumerate(tasks)
            )
            groups = await asyncio.gather(*playing)
            for epoch in range(EPOCHS):
                metrics = await services.trainer.train_step(groups)
                services.record(step - EPOCHS + 1 + epoch, groups, metrics)
            await services.trainer.push_weights(step)
            await services.generator.update_weights(step)
        last = loop.steps - loop.steps % EPOCHS
        after = await services.evaluate(last)
        await services.save(last)
        print(f"held-out success {before.shown} -> {after.shown}")


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(ppo))
