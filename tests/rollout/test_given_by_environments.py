"""What an environment gives that cannot be used is its error, in words; it never counts as the policy's failure."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from agentgym.env import Environment, EpisodeContext, Reply
from agentgym.policies.scripted import play_script
from agentgym.rewards import Reward
from agentgym.rollout.scoring import Scorer
from agentgym.testing import run_fast
from agentgym.types import Episode, Outcome, Split, Task

TASK = Task(task_id="t", prompt=({"role": "user", "content": "Go."},))


class Gives(Environment):
    """One reply with these messages, or this success."""

    def __init__(self, messages: Any = (), success: Any = True) -> None:
        self.messages, self.success = messages, success

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        yield TASK

    async def reply(self, context: EpisodeContext) -> Reply:
        context.info["success"] = self.success
        return Reply(messages=self.messages, done=True)


def played(environment: Gives) -> Episode:
    scorer = Scorer([Reward(name="right", function=lambda one: float(one.success), inline=True)], {"right": 1.0})
    return run_fast(play_script(environment, TASK, [{"role": "assistant", "content": "yes"}], scorer=scorer))


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ("more", "the Reply's `messages` is a text; give messages, as in "),
        ({"role": "user", "content": "more"}, "give a list of messages"),
        (None, "the Reply's `messages` is None; give a list of messages"),
        (({"role": "human", "content": "more"},), "a message has the role 'human'"),
    ],
)
def test_a_reply_of_what_are_no_messages_is_the_environments_error(messages: Any, said: str) -> None:
    error = played(Gives(messages)).error
    assert error is not None and error.source == "environment:Gives.reply" and said in error.message


@pytest.mark.parametrize("said", [1, math.nan, "yes", np.array([True, True])])
def test_a_success_that_is_not_a_bool_is_the_environments_error_and_no_failure(said: Any) -> None:
    episode = played(Gives(success=said))
    assert episode.outcome is Outcome.INFRA_ERROR and "record True or False" in str(episode.error)


def test_numpys_bool_is_a_success() -> None:
    episode = played(Gives(success=np.bool_(True)))
    assert episode.info["success"] is True and episode.reward == 1.0
