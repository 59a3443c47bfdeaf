"""Plays environments whose own program asks the policy, with a policy that is a script, through a real endpoint."""

from __future__ import annotations

import asyncio
from typing import Any

from agentgym.env import Environment, default_weights
from agentgym.hooks import PluginRegistry
from agentgym.policies.by_agent import AgentPlayer, OwnProgram
from agentgym.rollout.activity import Activity
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.serve.endpoint import Endpoint
from agentgym.testing import CharacterTokenizer, ScriptedGenerator
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, Task


async def play(
    environment: Environment[Any],
    *says: str,
    count: int = 1,
    task: Task | None = None,
    group: bool = False,
    **limits: Any,
) -> list[Episode]:
    """Episodes of a task, together; the policy says the words one after another, the last for ever.

    task: None is the first test task. group: they are scored as one, too.
    """
    generator = ScriptedGenerator(says, CharacterTokenizer())
    task = task or next(iter(environment.tasks("test")))
    async with Endpoint() as endpoint:
        player = AgentPlayer(
            environment=environment,
            renderer=ChatRenderer(generator.tokenizer),
            generator=generator,
            scorer=Scorer.of(environment, PluginRegistry([]), default_weights(environment)),
            config=RolloutConfig(**{"max_retries": 1, **limits}),
            sandbox=None,
            activity=Activity(),
            agent=OwnProgram(environment=environment),
            name="verifiers",
            endpoint=endpoint,
        )
        episodes = await asyncio.gather(*(player.play(task, episode_id=f"e{n}", seed=n) for n in range(count)))
        if group:
            await player.scorer.score_group(episodes)
        return episodes
