"""GRPO, asynchronous: the loop of `agentgym train`, as a program.

    python -m apps.grpo.main --config apps/grpo/math.yaml loop.steps=20 --trainer.procs 2
    python -m apps.grpo.main --resume runs/math-1 loop.steps=40

For another algorithm copy agentgym/loops/async_rl.py beside this file, change it, and call its `train` here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import agentgym
from agentgym.loops.async_rl import train
from agentgym.recipe import Recipe


async def grpo(recipe: Recipe, resume: Path | None = None) -> None:
    """Group Relative Policy Optimization: sample and train at the same time, with a bound on staleness."""
    async with agentgym.services(recipe, resume=resume) as services:
        result = await train(await services.begin())
        if result.first is not None and result.last is not None:
            print(f"held-out success {result.first.shown} -> {result.last.shown}")
        if early := result.nothing_left or result.stopped:
            print(f"after step {result.steps}: {early}")


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(grpo))
