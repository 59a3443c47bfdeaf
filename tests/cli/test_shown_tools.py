"""`agentgym envs show` lists the tools that a task's agent has."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from agentgym.cli.main import main
from agentgym.cli.shown_tools import tools_of
from agentgym.env import Environment, EpisodeContext
from agentgym.errors import UserError
from agentgym.types import SandboxSpec, Split, Task
from agentgym_envs.tool_use.environment import ToolUse


def test_the_tools_of_a_task_are_shown_with_their_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    levels = ["--env.options.levels", "[1]", "--env.options.worlds", "[shop]"]
    assert main(["envs", "show", "tool_use", "--tasks", "4", *levels]) == 0
    text = capsys.readouterr().out
    task = next(ToolUse(levels=[1], worlds=["shop"]).tasks("test"))
    shown = text.split("[tools]\n")[1].splitlines()[: len(tools_of(ToolUse(), task))]
    names = [str(schema["function"]["name"]) for schema in tools_of(ToolUse(), task)]  # type: ignore[index,call-overload]
    assert [line.partition("(")[0] for line in shown] == names
    assert "buy(item, count): Buy an item." in text

    assert main(["envs", "show", "tool_use", "--tasks", "1", "--json", *levels]) == 0
    assert [one["function"]["name"] for one in json.loads(capsys.readouterr().out)["tools"]] == names


def test_without_tools_nothing_is_started(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "show", "code_exec"]) == 0
    assert "[tools]" not in capsys.readouterr().out


class Broken(Environment[object]):
    """Cannot start."""

    tools = dict

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        yield Task(task_id="broken/0", prompt=())

    async def start(self, context: EpisodeContext[object]) -> object:
        raise OSError("no disk")


def test_a_task_that_cannot_start_is_named_and_one_with_a_sandbox_is_not_started() -> None:
    task = next(Broken().tasks("train"))
    with pytest.raises(UserError, match="task broken/0 cannot be started to see its tools: OSError: no disk"):
        tools_of(Broken(), task)
    assert tools_of(Broken(), Task(task_id="x", prompt=(), sandbox=SandboxSpec())) == ()
