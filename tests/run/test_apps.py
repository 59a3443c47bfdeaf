"""The tiny policy's recipes of apps/grpo train two steps on the CPU, with their own settings but for the sizes."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from pathlib import Path

import pytest
from real_templates import REAL
from small_models import write_small

from agentgym.config import apply_overrides
from agentgym.models.tiny import policy_path
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import EXTENDS
from agentgym.run.train import train
from agentgym.text.tokenizer import TEMPLATES
from agentgym.yaml import read_yaml

TESTS = Path(__file__).parents[1]
FOLDER = TESTS.parent / "apps" / "grpo"
RECIPES = [path for path in sorted(FOLDER.glob("*.yaml")) if EXTENDS not in read_yaml(path)]
COIN = f"{TESTS / 'data' / 'coin.py'}:coin"
SMALL = [
    "loop.steps=2", "loop.groups_per_step=2", "loop.group_size=4", "loop.checkpoint_every=2", "generator.replicas=1",
    "eval.tasks=2", "eval.samples_per_task=1", "logging.sinks=[]", "sandbox.name=monty",
]  # fmt: skip
ON_CPU = [
    "trainer.device=cpu", "trainer.gpus=[]", "trainer.dtype=float32", "generator.device=cpu", "generator.gpus=[]",
    "generator.dtype=float32", "generator.engine={name: native}", "rollout.max_turn_tokens=16",
]  # fmt: skip

UNTRAINED = ["model.random_weights=true", "rollout.cut_turns=score"]  # it never ends a turn
SPELLED_OUT = ["rollout.max_episode_tokens=512", "generator.max_model_len=512", "trainer.seq_len=512"]  # few tokens


TINY = json.loads((policy_path() / "tokenizer_config.json").read_text())["chat_template"]


CASES = {
    "code_exec_tiny": ([], TINY),
    "code_exec_sync": ([], TINY),
    "math": (["model.chat_template=builtin:plain"], TEMPLATES["builtin:plain"]),
    "tool_use": ([], TINY),
    "smollm2_135m_cpu": ([*SPELLED_OUT, *UNTRAINED], REAL["smollm2"]),
    "qwen3_0.6b_two_gpus": (ON_CPU, REAL["qwen3"]),
    "qwen3_8b_qlora": ([*ON_CPU, *UNTRAINED, "env.name=math", "rollout.max_turns=1"], REAL["qwen3"]),
}
QUICK = {"math", "qwen3_0.6b_two_gpus"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.hostile) for name in CASES]
)
def test_a_recipe_trains_two_steps(lab, tmp_path: Path, name: str) -> None:
    from transformers import AutoTokenizer

    more, template = CASES[name]
    given = read_yaml(next(path for path in RECIPES if path.stem == name))
    if name.startswith("qwen3"):
        sizes = {"hidden_size": 64, "intermediate_size": 64, "head_dim": 32} if "qlora" in name else {}
        more = [*more, f"model.path={write_small('Qwen/Qwen3-0.6B', tmp_path / 'qwen3', **sizes)}"]
    if name.startswith("smollm2"):
        more = [*more, f"model.path={write_small('pypi:smollm2', tmp_path / 'smollm2')}"]
    if "code_exec" not in name:  # too hard for these policies
        given["rewards"] = {**given.get("rewards", {}), COIN: 1.0}
    recipe, _ = finish_recipe(apply_overrides(given, [*SMALL, lab.in_process, *more]))
    reporter = lab.reporter()
    with closing(lab.new_run(recipe)) as folder:
        asyncio.run(train(recipe, folder, reporter))
        assert [row.step for row in folder.read_metrics()] == [1, 2]
        exported = AutoTokenizer.from_pretrained(folder.checkpoint_dir(2) / "hf")
    assert exported.chat_template == template
    assert all(metrics.get("sync/mismatch_max", 0) < 1e-4 for metrics in reporter.metrics)
    assert sum(note.startswith("estimate: a step takes about ") for note in reporter.notes) == 1


def test_every_recipe_is_trained() -> None:
    assert CASES.keys() == {path.stem for path in RECIPES}
