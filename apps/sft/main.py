"""Supervised fine-tuning: the loop of `agentgym sft`, as a program.

    python -m apps.sft.main --config apps/sft/warm_start.yaml sft.steps=20 --trainer.procs 2
    python -m apps.sft.main --resume runs/warm sft.steps=40

To change it copy agentgym/loops/sft.py beside this file, and call its `train` here.
"""

from __future__ import annotations

import sys
from pathlib import Path

import agentgym
from agentgym.loops.sft import train
from agentgym.recipe import Recipe


async def sft(recipe: Recipe, resume: Path | None = None) -> None:
    """Supervised fine-tuning: imitate demonstrations, and play before and after. The same as `agentgym sft`."""
    async with agentgym.services(recipe, resume=resume) as run:
        result = await train(run)
        if result.first is not None and result.last is not None:
            print(f"held-out success {result.first.shown} -> {result.last.shown}")


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(sft, command="sft"))
