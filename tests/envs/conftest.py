"""Fixtures of the benchmarks' tests."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import pytest

from agentgym.env import Environment
from agentgym.hooks import PluginRegistry
from agentgym.policies.scripted import play_script
from agentgym.rollout.scoring import Scorer
from agentgym.types import Episode, Message, Task

Play = Callable[[Environment[Any], Task, Any], Awaitable[Episode]]


@pytest.fixture
def fresh_packages() -> Iterator[None]:
    """Packages of the benchmarks' names that a test imports are forgotten, before and after it."""
    _forget()
    yield
    _forget()


def _forget() -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("bfcl_eval", "tau_bench", "agentdojo")]:
        del sys.modules[name]


@pytest.fixture
def play() -> Play:
    """Plays a task with an agent's messages, as texts or whole, and scores the episode."""

    async def play(environment: Environment[Any], task: Task, says: Any) -> Episode:
        messages = says if not isinstance(says, Sequence) else [_message(one) for one in says]
        async with Scorer.of(environment, PluginRegistry.discover(), {}) as scorer:
            return await play_script(environment, task, messages, scorer=scorer)

    return play


def _message(one: Any) -> Message:
    return {"role": "assistant", "content": one} if isinstance(one, str) else one
