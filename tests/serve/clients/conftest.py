"""An episode at an endpoint, played by an agent program, whose policy is a script of texts."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

import pytest_asyncio
from odd_tokens import OddTokenizer, ScriptedEngine, prove

from agentgym.policies.conversation import EpisodeHandler
from agentgym.rollout.config import RolloutConfig
from agentgym.serve.endpoint import Endpoint
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, Sample, Task

collect_ignore_glob = [] if importlib.util.find_spec("smolagents") else ["test_*.py"]
os.environ |= {"MSWEA_SILENT_STARTUP": "1", "MSWEA_COST_TRACKING": "ignore_errors"}
os.environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "OPENAI_AGENTS_DISABLE_TRACING": "1"}


@dataclass
class Played:
    """One episode. url: of the endpoint; for OpenAI's clients with /v1."""

    url: str
    key: str
    engine: ScriptedEngine
    handler: EpisodeHandler
    episode: Episode
    endpoint: Endpoint
    samples: list[Sample] = field(default_factory=list)

    @property
    def num_branches(self) -> int:
        return len(self.samples)

    def prove(self) -> None:
        """End the episode, and prove that its samples are what the engine sampled."""
        self.endpoint.conclude(self.key)
        self.handler.conclude()
        self.samples = prove(self.episode, self.engine)


@pytest_asyncio.fixture
async def play() -> AsyncIterator[Callable[..., Played]]:
    async with Endpoint() as endpoint:

        def make(*says: str | Sequence[str], max_tokens: int = 100_000) -> Played:
            tokenizer = OddTokenizer()
            engine = ScriptedEngine(tokenizer, chain(says, repeat("More than the script.")))
            task = Task(task_id="task", prompt=({"role": "user", "content": "1 + 2?"},))
            episode = Episode(episode_id="episode", task=task, seed=0)
            config = RolloutConfig(max_turns=50, max_turn_tokens=1000, max_episode_tokens=max_tokens)
            handler = EpisodeHandler(ChatRenderer(tokenizer), engine, config, episode)
            return Played(endpoint.url, endpoint.admit(handler), engine, handler, episode, endpoint)

        yield make
