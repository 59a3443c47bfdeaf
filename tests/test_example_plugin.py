"""The plugin that the documentation shows is a whole distribution that works."""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from agentgym.env import EpisodeContext
from agentgym.hooks import PluginRegistry
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode

ROOT = Path(__file__).parent / "data" / "example_plugin"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginRegistry]:
    monkeypatch.syspath_prepend(ROOT)
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["agentgym"]
    installed = importlib.metadata.entry_points(group="agentgym")
    mine = [importlib.metadata.EntryPoint(name, value, "agentgym") for name, value in table.items()]
    yield PluginRegistry([*installed, *mine])
    sys.modules.pop("guess_number", None)


async def test_the_example_is_played_and_scored_with_its_own_reward(registry: PluginRegistry) -> None:
    environment = registry.environment("guess_number")()
    task = next(environment.tasks("train"))
    context = EpisodeContext(task=task, messages=list(task.prompt))
    context.state = await environment.start(context)
    low, high, done = 1, 100, False
    while not done:
        guess = (low + high) // 2
        context.messages.append({"role": "assistant", "content": f"Is it {guess}?"})
        context.turn += 1
        reply = await environment.reply(context)
        done = reply.done
        for message in reply.messages:
            low, high = (guess + 1, high) if message["content"] == "Higher." else (low, guess - 1)
    assert context.turn <= environment.max_turns and context.info["success"] is True
    episode = Episode(episode_id="e", task=task, seed=0, messages=context.messages, info=context.info)
    weights = {"success": 1.0, "few_guesses": 0.1, "polite": 0.5}
    async with Scorer.of(environment, registry, weights) as scorer:
        await scorer.score(episode)
    assert episode.error is None and environment.rewards == {"success": 1.0, "few_guesses": 0.1}
    assert episode.reward == pytest.approx(1.0 + 0.1 / context.turn)


def test_the_examples_splits_share_no_task(registry: PluginRegistry) -> None:
    environment = registry.environment("guess_number")()
    train = {task.answer for task in islice(environment.tasks("train"), 500)}
    test = {task.answer for task in environment.tasks("test")}
    assert train and test and not train & test
