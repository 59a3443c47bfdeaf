"""Our reading of task.toml and of rewards, and our trajectories, against Harbor's own classes in another process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from agent_programs import PYPI
from harbor_comparing import disagreement, question
from view_runs import HOSTILE, broken, episode

from agentgym.runs.records import SavedEpisode
from agentgym.tables.trajectories import to_atif
from agentgym.types import Episode

SCRIPT = Path(__file__).parents[1] / "harbor_reference.py"


def answers_of_harbor(asked: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    python = PYPI / "harbor" / "bin" / "python"
    lines = "".join(json.dumps(one) + "\n" for one in asked)
    ran = subprocess.run([python, SCRIPT], input=lines, capture_output=True, text=True, timeout=250)
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.agents
def test_five_hundred_task_files_and_a_hundred_rewards_are_read_as_harbor_reads_them() -> None:
    asked = [question("toml", seed) for seed in range(500)] + [question("file", seed) for seed in range(100)]
    answers = answers_of_harbor(asked)
    wrong = [
        f"{one}: {said}" for one, answer in zip(asked, answers, strict=True) if (said := disagreement(one, answer))
    ]
    assert not wrong, wrong[:3]
    assert sum("value" in answer for answer in answers) > 250  # else little was compared


@pytest.mark.agents
def test_a_hundred_trajectories_are_accepted_by_harbor_with_the_tokens_of_their_episodes() -> None:
    played = [an_episode(number) for number in range(100)]
    saved = [
        SavedEpisode(step=1, group_id=0, index=0, start_version=0, advantage=None, trained=False, episode=one)
        for one in played
    ]
    atif = [to_atif(one, agent="chat", model="builtin:tiny", version="1") for one in saved]
    answers = answers_of_harbor([{"trajectory": one} for one in atif])
    for one, answer in zip(played, answers, strict=True):
        turns = [one.turns[number] for number in one.last_branch]
        assert answer == {"value": [[list(turn.prompt_ids), list(turn.completion_ids)] for turn in turns]}


def an_episode(number: int) -> Episode:
    """Of five kinds: whole, with odd text, broken, with a rewritten history, and with arguments that are a text."""
    if number % 5 == 2:
        return broken(number, 0)
    one = episode(number, number % 7, success=number % 2 == 0, text=HOSTILE if number % 5 == 1 else "")
    if number % 5 == 3:
        one.branches, one.branch_reasons = [(0,), (1,)], ["compacted"]
        one.messages[1:-1] = [{"role": "assistant", "content": "a summary that the agent put there"}]
    if number % 5 == 4:
        call = {"type": "function", "id": "call00000", "function": {"name": "add", "arguments": '{"a": 1'}}
        one.messages[-3] = {"role": "assistant", "content": "", "tool_calls": [call]}
    return one
