"""A run whose episodes a command-line agent plays, unchanged: whole, and trained on what was sampled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentgym.models.tiny import policy_path
from tests.agent_programs import program
from tests.trained_runs import train_two_steps

pytestmark = pytest.mark.hostile

ENVIRONMENT = '''
import hashlib

from agentgym import Environment, Reply, Task, reward


class Luck(Environment[None]):
    """Pays for a hash of the answer, so that some answers earn more than others."""

    name = "luck"
    def tasks(self, split, seed=0):
        for number in range(8):
            yield Task(task_id=f"{split}{number}", prompt=({"role": "user", "content": f"Say {number}."},))

    async def start(self, context):
        return None

    async def reply(self, context):
        context.info["luck"] = hashlib.sha256(context.messages[-1]["content"].encode()).digest()[0] / 255
        return Reply(done=True)

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


@pytest.mark.parametrize(("name", "program_name", "room"), [("claude_code", "claude", 4096), ("codex", "codex", 11264)])
def test_two_steps_are_trained_on_what_an_agents_program_had_sampled(tmp_path, policy, name, program_name, room):
    (tmp_path / "luck.py").write_text(ENVIRONMENT)
    train_two_steps(settings_of(name, program_name, room, policy), tmp_path)


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
        "loop.group_size": "2", "rollout.max_turn_tokens": "48", "rollout.max_episode_tokens": str(room),
        "generator.max_model_len": str(room), "trainer.seq_len": str(room),
    }  # fmt: skip
