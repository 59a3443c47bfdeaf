"""An environment that plays its episodes with a program of its own: whose fault it is when that fails."""

from __future__ import annotations

import pytest

from agentgym.agents import ProgramEnvironment
from agentgym.errors import InfraError
from agentgym.rewards import reward
from agentgym.types import Outcome, Stop, Task
from tests.playing_packages import play

TASK = Task(task_id="t", prompt=({"role": "user", "content": "say yes"},))


@pytest.mark.parametrize(
    ("error", "retries"), [(ZeroDivisionError("by its author"), 0), (InfraError("it is away"), 1), (None, 0)]
)
async def test_a_program_that_an_environment_brings_is_not_the_policys_when_it_fails(error, retries):
    class Own(ProgramEnvironment):
        name = "own"

        def tasks(self, split, seed=0):
            yield TASK

        async def play(self, context, policy):
            if error is not None:
                raise error
            context.info["success"] = True

        @reward(inline=True)
        def right(self, episode):
            return float(episode.success)

    [episode] = await play(Own(), "yes", task=TASK)
    assert episode.retries == retries
    if error is None:
        assert (episode.outcome, episode.stop, episode.reward) == (Outcome.SCORED, Stop.DONE, 1.0)
    else:
        assert episode.outcome is Outcome.INFRA_ERROR
        assert episode.error.source == "environment:own.play" and str(error) in episode.error.message
