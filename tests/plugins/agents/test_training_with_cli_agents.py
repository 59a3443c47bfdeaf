"""A run whose episodes a command-line agent plays, unchanged: whole, and trained on what was sampled."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.models.tiny import policy_path

pytestmark = pytest.mark.hostile

BIN = Path(__file__).parents[3] / ".npm-agents" / "node_modules" / ".bin"
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


@pytest.mark.parametrize(("name", "program", "room"), [("claude_code", "claude", 4096), ("codex", "codex", 11264)])
def test_two_steps_are_trained_on_what_an_agents_program_had_sampled(tmp_path, policy, name, program, room):
    (tmp_path / "luck.py").write_text(ENVIRONMENT)
    settings = {
        "env": "luck.py:Luck", "agent": name, "agent.program": str(BIN / program), "model.path": str(policy),
        "loop.steps": "2", "loop.groups_per_step": "1", "loop.group_size": "2", "loop.max_staleness": "0",
        "loop.eval_every": "0", "eval.at_end": "false", "rollout.max_turn_tokens": "48", "rollout.temperature": "1.5",
        "rollout.max_episode_tokens": str(room), "generator.max_model_len": str(room), "trainer.seq_len": str(room),
        "logging.sinks": "[]",
    }  # fmt: skip
    words = ["train", *(word for key, value in settings.items() for word in (f"--{key}", value))]
    done = agentgym(words, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    [run] = (tmp_path / "runs").iterdir()
    audit = agentgym(["runs", "audit", str(run)], tmp_path)
    assert audit.returncode == 0, audit.stdout
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [step for step in steps if "time/step_s" in step]
    assert len(trained) == 2 and all(step["train/mismatch_max"] < 1e-3 for step in trained)
    for step in trained:  # a group whose episodes all earned the same is sampled, and not trained on
        sampled = round(step["rollout/completion_tokens_mean"] * step["rollout/episodes"])
        assert 0 < step["train/trained_tokens"] <= sampled


def agentgym(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("agentgym")), *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)
