"""Rollout workers: the same run as without them, whatever happens to one."""

from __future__ import annotations

import pytest
from same_run import differences

from agentgym.run.train import train

DETERMINISTIC = (
    "env.name=math",
    "env.options.levels=[1]",
    "generator.replicas=2",
    "loop.deterministic=true",
    "loop.max_staleness=1",
    "loop.checkpoint_every=3",
    "loop.eval_every=2",
    "loop.eval_tasks=2",
    "eval.at_end=false",
    "optimizer.lr=1e-3",
)


@pytest.mark.parametrize("workers", [2])
async def test_a_deterministic_run_is_the_same_with_workers(lab, workers: int) -> None:
    runs = []
    for number in (0, workers):
        recipe = lab.recipe(*DETERMINISTIC, f"rollout.workers={number}")
        with lab.new_run(recipe, f"with{number}") as folder:
            await train(recipe, folder, lab.reporter())
            runs.append(folder)
    assert differences(*runs) == []
