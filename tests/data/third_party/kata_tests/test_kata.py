"""What the package brings keeps the promises of its kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from agentgym_kata.drafts import Drafts
from agentgym_kata.environment import Kata, short
from agentgym_kata.plain import Plain
from agentgym_kata.sink import Report
from agentgym_kata.tags import Tags

from agentgym import Episode, Json, Reward, UserError
from agentgym.testing import (
    AgentConformance,
    EnvironmentConformance,
    GradingConformance,
    RewardConformance,
    SandboxConformance,
    SinkConformance,
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


class TestKata(EnvironmentConformance):
    environment, sandbox, num_tasks = "kata", "plain", 3
    sandbox_options = {"trusted": True}


class TestShort(RewardConformance):
    def make(self) -> Reward:
        return Reward(name="short", function=short, inline=True)

    def info(self) -> dict[str, Json]:
        return {"size": 12}


class TestReport(SinkConformance):
    def make(self) -> Report:
        return Report()

    def read(self, run_dir: Path) -> Mapping[str, list[tuple[int, float]]]:
        found: dict[str, list[tuple[int, float]]] = {}
        for step, name, value in re.findall(r"^- step (\d+): (\S+) (\S+)$", (run_dir / "report.md").read_text(), re.M):
            found.setdefault(name, []).append((int(step), float(value)))
        return found


class TestDrafts(AgentConformance):
    def make(self) -> Drafts:
        return Drafts()


def played(drafts: list[str]) -> Episode:
    return asyncio.run(play_agent(Drafts(drafts=len(drafts)), Kata(), drafts, sandbox=Plain(trusted=True)))


def test_the_oracle_solves_a_task_by_the_tool() -> None:
    environment = Kata()
    task = next(environment.tasks("test"))
    episode = asyncio.run(play(environment, task, environment.solve(task), sandbox=Plain(trusted=True)))
    assert episode.success and [message["role"] for message in episode.messages][-2:] == ["tool", "assistant"]


def test_the_shortest_draft_is_the_answer() -> None:
    episode = played(["def f(x):\n    return 0", "def f(x): pass"])
    assert episode.info["size"] == len("def f(x): pass") and episode.success is False


def test_programs_of_others_are_refused_unless_they_are_trusted() -> None:
    with pytest.raises(UserError, match="trusted true"):
        Plain()
