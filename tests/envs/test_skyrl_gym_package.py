"""Environments of the real skyrl-gym, in a Python of their own: its rewards, and a run that trains on them."""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from agentgym.testing import play
from agentgym.types import Outcome, Stop
from agentgym_envs.skyrl_gym import SkyRLGym
from tests.trained_runs import train_two_steps

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "data" / "small_skyrl"
PYTHON = str(ROOT / ".venv-verifiers" / "bin" / "python")
pytestmark = pytest.mark.hostile

CODE = {"input": "3\n", "output": "6\n", "testtype": "stdin"}
RIGHT = {"gsm8k": "#### 42", "gsm8k_multi_turn": "#### 42", "aime": "So it is.\nAnswer: 42"}
WORDS = {
    **{name: ([said], ["no"], ["#### 41", said], ["no", "no", "no", "no"]) for name, said in RIGHT.items()},
    "search": (["<answer>42</answer>"], ["<answer>41</answer>"]),
    "lcb": (["```python\nprint(2 * int(input()))\n```"], ["```python\nprint(1)\n```"], ["no code"]),
}


def row_of(name):
    truth = {"search": {"target": ["42"]}, "lcb": json.dumps([{**CODE, "metadata": {"func_name": None}}])}
    return {
        "prompt": [{"role": "user", "content": "What is 6 * 7?"}], "env_class": name, "extra_info": {"max_turns": 3},
        "reward_model" if name == "aime" else "reward_spec": {"method": "rule", "ground_truth": truth.get(name, "42")},
    }  # fmt: skip


@pytest.mark.parametrize("name", WORDS)
async def test_an_environment_gives_the_rewards_that_skyrl_gym_gives_for_the_same_words(name, tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row_of(name)) + "\n")
    options = {"train": str(file), "test": str(file), "python": PYTHON, "max_turns": 3, "unsafe": name == "lcb"}
    with closing(SkyRLGym(environment=name, **options)) as environment:
        task = next(iter(environment.tasks("test")))
        episodes = [await play(environment, task, words) for words in WORDS[name]]
    asked = "".join(json.dumps([name, row_of(name), words, 3]) + "\n" for words in WORDS[name])
    done = subprocess.run(
        [PYTHON, SMALL / "own_rewards.py"], input=asked, check=True, capture_output=True, text=True, cwd=tmp_path
    )
    own = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert [one.outcome for one in episodes] == [Outcome.SCORED] * len(episodes)
    found = [[one.reward, one.stop is Stop.DONE, one.info["steps"]] for one in episodes]
    assert found == own and len({reward for reward, *_ in own}) > 1


def test_two_steps_are_trained_on_an_environment_of_a_file(tmp_path):
    rows = [
        {"prompt": [{"role": "user", "content": f"Say {n}."}], "reward_spec": {"ground_truth": str(n)}}
        for n in range(9)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {
        "env": f"skyrl_gym:{SMALL / 'hash_env.py'}:HashEnv", "env.options.train": "rows.jsonl",
        "env.options.python": PYTHON, "loop.group_size": "4", "rollout.max_turn_tokens": "24",
    }  # fmt: skip
    for step in train_two_steps(settings, tmp_path):
        assert step["train/trained_tokens"] == round(step["rollout/completion_tokens_mean"] * step["rollout/episodes"])
