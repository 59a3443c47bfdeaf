"""A loop over rows of a file: sample more than is trained, and train what tells most apart.

Start it with `python -m own_algorithm.main --loss.name own_algorithm.algorithm:Capped`, and the advantage likewise.
"""

from __future__ import annotations

import asyncio
import itertools
import sys

import agentgym
from agentgym.loops.pieces import Pieces
from agentgym.loops.rows import Row, RowSource
from agentgym.recipe import Recipe
from agentgym.run.services import Services
from agentgym.types import Group
from own_algorithm.algorithm import spread

PIECES = Pieces(
    rows=[RowSource(path="json", data_files="questions.jsonl")],
    reward_functions=["own_algorithm.algorithm:brevity"],
    replay_buffer={"sample_policy": "own_algorithm.algorithm:widest", "max_policy_age": 4},
)


async def play(services: Services, row: Row, number: int) -> Group:
    said = await services.generator.generate(row["question"], n=services.recipe.loop.group_size)
    scores = (services.rewards.evaluate_response(row["question"], one.text, row["answer"]) for one in said)
    return services.group(number, said, await asyncio.gather(*scores))


async def train(recipe: Recipe) -> None:
    """Twice as many groups are sampled as trained."""
    loop, numbers, waiting = recipe.loop, itertools.count(), dict[int, float]()
    async with agentgym.services(recipe, pieces=PIECES) as services:
        assert services.rows is not None
        for step in range(1, loop.steps + 1):
            rows = await services.rows.sample_many(2 * loop.groups_per_step)
            for group in await asyncio.gather(*(play(services, row, next(numbers)) for row in rows)):
                await services.replay_buffer.add(group)
                waiting[group.group_id] = spread(group)
            batch = await services.replay_buffer.sample(step - 1)
            assert batch is not None
            chosen = min(waiting.pop(group.group_id) for group in batch)
            metrics = await services.trainer.train_step(batch)
            await services.trainer.push_weights(step)
            await services.generator.update_weights(step)
            buffer = await services.replay_buffer.get_metrics()
            services.record(step, batch, {**metrics, **buffer, "own/margin": chosen - max(waiting.values())})


if __name__ == "__main__":
    sys.exit(agentgym.run_loop(train))
