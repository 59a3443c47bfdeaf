"""What a loop asks for besides its recipe: mistakes are said before anything starts, and groups have a version."""

from __future__ import annotations

import pytest
from sampled import sampled_turn

from agentgym.errors import UserError
from agentgym.loops.pieces import Pieces
from agentgym.loops.rows import RowSource
from agentgym.rewards import Reward
from agentgym.rl.config import LoopConfig
from agentgym.rollout.scoring import Scorer
from agentgym.run.calls import BufferCalls
from agentgym.run.training_calls import RewardCalls
from agentgym.types import Episode, Group, Outcome, Task

ROWS = [RowSource(path="json", data_files="rows.jsonl")]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"replay_buffer": {"batch_sise": 2}}, "Did you mean 'batch_size'"),
        ({"rows": ROWS, "row_settings": {"shufle_buffer": 2}}, "Did you mean 'shuffle_buffer'"),
        ({"row_settings": {"seed": 2}}, "row_settings without rows"),
        ({"reward_functions": "judges:half"}, "give a list"),
        ({"reward_functions": ["judges:no_such"]}, "no_such"),
        ({"reward_replicas": 0}, "must be at least 1"),
    ],
)
def test_a_mistake_is_said_at_once(given: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Pieces(**given)  # type: ignore[arg-type]


def group(number: int, *versions: int) -> Group:
    """An episode for each version of the weights that sampled it."""
    task = Task(task_id="t", prompt=())
    episodes = []
    for version in versions:
        turn = sampled_turn((1,), (2,), version=version)
        episodes.append(Episode(episode_id="e", task=task, seed=0, turns=[turn], outcome=Outcome.SCORED))
    return Group(group_id=number, task=task, start_version=0, episodes=episodes, advantages=[1.0] * len(episodes))


async def test_the_buffer_follows_the_recipe_and_a_group_is_as_old_as_its_oldest_token() -> None:
    calls = BufferCalls.of(
        LoopConfig(groups_per_step=2, max_staleness=1), Pieces(replay_buffer={"sample_policy": "oldest"})
    )
    for number, versions in enumerate([(3, 5), (4, 5), (5, 5)]):
        await calls.add(group(number, *versions))
    batch = await calls.sample(5)
    assert batch is not None and [one.group_id for one in batch] == [1, 2]  # the first has a token of version 3
    assert await calls.sample(5) is None and await calls.numel() == 0


async def test_a_buffer_of_several_parts_gives_as_many() -> None:
    calls = BufferCalls.of(LoopConfig(), Pieces(replay_buffer={"batch_size": 1, "dp_size": 2}))
    for number in range(2):
        await calls.add(group(number, 0))
    batch = await calls.sample(0)
    assert batch is not None and [len(part) for part in batch] == [1, 1]


async def test_without_reward_functions_no_response_is_scored() -> None:
    rewards = RewardCalls(Scorer([Reward(name="r", function=lambda _: 0.0, inline=True)], {"r": 1.0}), None)
    with pytest.raises(UserError, match="Pieces"):
        await rewards.evaluate_response("p", "r", "t")
