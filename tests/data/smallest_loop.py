"""The smallest loop: synchronous, one step after the other."""

import asyncio
import sys

import agentgym
from agentgym.recipe import Recipe


async def main(recipe: Recipe) -> None:
    """Sample, train, and give the generators the new weights."""
    async with agentgym.services(recipe) as services:
        for step in range(1, recipe.loop.steps + 1):
            tasks = [await services.dataset.sample() for _ in range(recipe.loop.groups_per_step)]
            numbered = enumerate(tasks, step * len(tasks))
            played = [services.environment.play_group(task, number) for number, task in numbered]
            groups = [group for group in await asyncio.gather(*played) if group.has_signal]
            if not groups:
                continue
            metrics = await services.trainer.train_step(groups)
            await services.trainer.push_weights(step)
            await services.generator.update_weights(step)
            services.record(step, groups, metrics)


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(main))
