"""A run whose episodes a command-line agent plays, unchanged: whole, and trained on what was sampled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentgym.models.tiny import policy_path
from agentgym.runs.folder import RunFolder
from tests.agent_programs import program
from tests.trained_runs import train_two_steps

pytestmark = [pytest.mark.hostile, pytest.mark.timeout(1200)]  # steps of 13,000 tokens, minutes on a busy machine

ENVIRONMENT = '''
import hashlib

from agentgym import Environment, Reply, Task, reward


class Luck(Environment[None]):
    """Asks for as many answers as it is told and pays for a hash of the last, so that some earn more than others."""

    name = "luck"

    def __init__(self, answers=1):
        self.max_turns = answers

    def tasks(self, split, seed=0):
        for number in range(8):
            yield Task(task_id=f"{split}{number}", prompt=({"role": "user", "content": f"Say {number}."},))

    async def start(self, context):
        return None

    async def reply(self, context):
        drawn = f"{context.seed}{context.messages[-1]['content']}"
        context.info["luck"] = hashlib.sha256(drawn.encode()).digest()[0] / 255
        if context.turn == self.max_turns:
            return Reply(done=True)
        return Reply(messages=({"role": "user", "content": "And once more?"},))

    @reward
    def luck(self, episode):
        return episode.info["luck"]
'''


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """The shipped policy with room for the agents' long prompts; its positions are rotations, so none is missing."""
    folder = tmp_path / "policy"
    shutil.copytree(policy_path(), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    return folder


AGENT = '''
from dataclasses import dataclass

from agentgym_plugins.agents.cli_agents import OpenCode


@dataclass(frozen=True, kw_only=True)
class Titled(OpenCode):
    """OpenCode with the call that names its session."""

    def options(self):
        return [word for word in super().options() if word not in ("--title", "task")]
'''


@pytest.mark.parametrize(
    ("name", "program_name", "room", "settings", "side"),
    [
        ("claude_code", "claude", 4096, {}, set()),
        ("codex", "codex", 13312, {"env.options.answers": "2", "agent.context_tokens": "4000"}, {2}),
        ("titled:Titled", "opencode", 14336, {}, {1}),
    ],
    ids=["claude_code", "codex_summarises_its_session", "opencode_names_its_session"],
)
def test_two_steps_are_trained_on_what_an_agents_program_had_sampled(
    tmp_path, monkeypatch, policy, name, program_name, room, settings, side
):
    (tmp_path / "luck.py").write_text(ENVIRONMENT)
    (tmp_path / "titled.py").write_text(AGENT)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    train_two_steps(settings_of(name, program_name, room, policy) | settings, tmp_path)
    [run] = (tmp_path / "runs").iterdir()
    episodes = [saved.episode for step in (1, 2) for saved in RunFolder.open(run).read_episodes(step)]
    num_turns = int(settings.get("env.options.answers", "1")) + len(side)
    whole = [one.turns for one in episodes if len(one.turns) == num_turns]  # none of their turns was cut
    assert whole, [one.info for one in episodes]
    assert all({n for n, turn in enumerate(turns, start=1) if turn.masked} == side for turns in whole)


@pytest.mark.docker
@pytest.mark.usefixtures("engine")
def test_two_steps_are_trained_on_what_a_program_in_a_session_had_sampled(tmp_path, policy):
    in_sandbox = ENVIRONMENT.replace("Task,", "SandboxSpec, Task,").replace("prompt=", "sandbox=SandboxSpec(), prompt=")
    (tmp_path / "luck.py").write_text(in_sandbox)
    session = {"agent.where": "session", "sandbox.name": "docker", "sandbox.options.pool_size": "1"}
    train_two_steps(settings_of("claude_code", "claude", 4096, policy) | session, tmp_path)


def settings_of(name: str, program_name: str, room: int, policy: Path) -> dict[str, str]:
    return {
        "env": "luck.py:Luck", "agent": name, "agent.program": program(program_name), "model.path": str(policy),
        "loop.group_size": "2", "rollout.max_turn_tokens": "400", "rollout.max_episode_tokens": str(room),
        "generator.max_model_len": str(room), "trainer.seq_len": str(room), "rollout.temperature": "1.0",
    }  # fmt: skip
