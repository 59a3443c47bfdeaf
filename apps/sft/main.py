"""Supervised fine-tuning as a loop over services.

    python -m apps.sft.main --config apps/sft/warm_start.yaml sft.steps=20 --trainer.procs 2

It trains as `agentgym sft` does, and `agentgym sft --resume` goes on with its runs. Copy this file,
and change it.
"""

from __future__ import annotations

import sys

import agentgym
from agentgym.recipe import Recipe


async def sft(recipe: Recipe) -> None:
    """Supervised fine-tuning: imitate demonstrations, and play before and after. The same as `agentgym sft`."""
    async with agentgym.services(recipe) as services:
        dataset, config = services.dataset, recipe.fine_tuning
        before = await services.evaluate(0) if recipe.evaluates else None
        async with services.training() as trainer:  # its processes; evaluations have the machine to themselves
            for step in range(1, dataset.num_steps + 1):
                samples = await dataset.sample(step)
                metrics = await trainer.train_step(samples)
                last = step == dataset.num_steps
                due = last or (config.checkpoint_every and step % config.checkpoint_every == 0)
                if due and dataset.lessons.held_out:
                    metrics["sft/held_out_loss"] = await services.held_out_loss()
                services.record(step, metrics)
                if due:
                    await services.save(step, wait=last or not config.checkpoint_in_background)
        if before is not None:
            after = await services.evaluate(dataset.num_steps)
            print(f"held-out success {before.shown} -> {after.shown}")


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(sft, command="sft"))
