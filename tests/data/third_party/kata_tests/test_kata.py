"""What the package brings keeps the promises of its kind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from agentgym_kata.drafts import Drafts
from agentgym_kata.environment import Kata, short
from agentgym_kata.plain import Plain
from agentgym_kata.tags import Tags

from agentgym import AgentFailed, UserError
from agentgym.testing import (
    FakeAgentContext,
    GradingConformance,
    SandboxConformance,
    ToolFormatConformance,
    play,
    play_agent,
)


class TestPlain(SandboxConformance):
    def make(self) -> Plain:
        return Plain(trusted=True)


class TestGrading(GradingConformance):
    def make(self) -> Plain:
        return Plain(trusted=True)


class TestTags(ToolFormatConformance):
    def make(self) -> Tags:
        return Tags()


def test_the_oracle_solves_a_task_by_the_tool() -> None:
    environment = Kata()
    task = next(environment.tasks("test"))
    episode = asyncio.run(play(environment, task, environment.solve(task), sandbox=Plain(trusted=True)))
    assert episode.success and [message["role"] for message in episode.messages][-2:] == ["tool", "assistant"]
    assert episode.rewards["short"] == short(episode)


def test_an_agent_plays_it_with_the_shortest_of_its_drafts() -> None:
    drafts = ["def f(x):\n    return 0", "def f(x): pass", "1", "22"]
    episode = asyncio.run(play_agent(Drafts(), Kata(), drafts, sandbox=Plain(trusted=True)))
    assert episode.info["size"] == len("def f(x): pass") and episode.success is False


def test_an_agent_without_a_policy_has_failed_by_itself() -> None:
    with pytest.raises(AgentFailed, match="exited with 1"):
        asyncio.run(Drafts().play(FakeAgentContext()))


def test_programs_of_others_are_refused_unless_they_are_trusted(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="trusted true"):
        Plain()
