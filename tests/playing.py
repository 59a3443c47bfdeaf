"""An environment played by a script, without a model: what the tests of environments share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentgym.env import Environment
from agentgym.policies.scripted import play_script
from agentgym.rewards import Reward
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Message, Task


async def play(environment: Environment[Any], task: Task, says: Iterator[Message] | Sequence[Message] | str) -> Episode:
    """The episode, whose environment must not have failed; one message may be given as its text."""
    reward = Reward(name="success", function=lambda episode: float(episode.success), inline=True)
    script = [Message(role="assistant", content=says)] if isinstance(says, str) else says
    episode = await play_script(environment, task, script, scorer=Scorer([reward], {"success": 1.0}))
    assert episode.error is None, episode.error
    return episode
