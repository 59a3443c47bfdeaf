"""A gym of parts that start nothing, for what asks one for its environment and its renderer."""

from __future__ import annotations

from agentgym.agents import Chat
from agentgym.env import Environment
from agentgym.recipe import Recipe
from agentgym.rewards import Reward
from agentgym.rollout.activity import Activity
from agentgym.rollout.scoring import Scorer
from agentgym.run.gym import Gym
from agentgym.run.settle import settle_served
from agentgym.text.chat import ChatRenderer


def bare_gym(environment: Environment, recipe: Recipe | None = None, chat: ChatRenderer | None = None) -> Gym:
    success = Reward(name="success", function=lambda episode: float(episode.success), inline=True)
    return Gym(
        environment=environment,
        chat=chat,
        scorer=Scorer([success], {"success": 1.0}),
        backend=None,
        capabilities=None,
        activity=Activity(),
        settled=settle_served(recipe or Recipe()),
        agent=Chat(),
    )
