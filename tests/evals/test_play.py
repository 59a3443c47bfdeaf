"""An evaluation ends early where nothing works, and its errors are sentences."""

from __future__ import annotations

from typing import Any

import pytest

from agentgym.env import Environment
from agentgym.errors import InfraError
from agentgym.evals.play import NUM_FIRST, EvalSetup, play_eval
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.player import Player
from agentgym.rollout.runner import EpisodeRunner
from agentgym.rollout.scoring import Scorer
from agentgym.types import Stop, Task


class Fails(Environment[Any]):
    """In the tasks whose answer says so."""

    rewards = {"one": 1.0}

    def tasks(self, split: str, seed: int = 0) -> Any:
        raise NotImplementedError

    async def start(self, context: Any) -> None:
        if context.task.answer:
            raise KeyError("board")


class Silent(Player):
    __slots__ = ()

    async def _turns(self, runner: EpisodeRunner) -> None:
        runner.episode.stop = Stop.DONE


def one(episode: Any) -> float:
    return 1.0


async def played(fails: list[bool]) -> int:
    scorer = Scorer([Reward(name="one", function=one, inline=True)], {"one": 1.0})
    player = Silent(
        environment=Fails(), scorer=scorer, config=RolloutConfig(), sandbox=None, activity=Activity(), greedy=False
    )
    tasks = [Task(task_id=str(n), prompt=(), answer=fail) for n, fail in enumerate(fails)]
    setup = EvalSetup.of(player.environment, tasks, samples_per_task=1, seed=0, greedy=False)
    ended: list[int] = []
    try:
        rows = await play_eval(player, tasks, setup, known={}, ended=lambda task, sample, episode: ended.append(task))
    except* InfraError as group:
        raise group.exceptions[0] from None
    return len(rows)


async def test_an_environment_that_fails_each_time_is_not_played_to_the_end() -> None:
    message = (
        rf"each of the first {NUM_FIRST} episodes broke; .*: environment:Fails.start: KeyError: 'board', at .*:\d+ in"
    )
    with pytest.raises(InfraError, match=message):
        await played([True] * 64)
    assert await played([True] * (NUM_FIRST - 1) + [False] + [True] * 32) == NUM_FIRST + 32
