"""The recipes of released models: each is read with every task and number of GPUs, and run with small weights."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from small_models import template_of, write_small

from agentgym.config import apply_overrides
from agentgym.families.registry import architecture_of
from agentgym.models.released import RELEASED
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import EXTENDS, read_recipe_files
from agentgym.run.train import train
from agentgym.yaml import read_yaml

TESTS = Path(__file__).parents[1]
APPS = TESTS.parent / "apps"
NAMES = [
    "llama3.1_8b", "llama3.2_1b", "qwen3_0.6b", "qwen3_1.7b", "qwen3_4b", "qwen3_8b", "smollm2_135m",
]  # fmt: skip
TASK_OF = {
    "llama3.1_8b": "tool_use", "llama3.2_1b": "gsm8k", "qwen3_0.6b": "gsm8k", "qwen3_1.7b": "code_exec",
    "qwen3_4b": "tool_use", "qwen3_8b": "code_exec", "smollm2_135m": "tool_use",
}  # fmt: skip
"""With which of the tasks each is trained here."""
LESS_MEMORY = {"qwen3_8b": "lean", "qwen3_0.6b": "small", "qwen3_1.7b": "adapters"}
"""Which of the presets of memory are laid over which recipe here."""
TASKS = sorted((APPS / "presets" / "tasks").glob("*.yaml"))
GPUS = sorted((APPS / "presets" / "gpus").glob("*.yaml"))
SIZES = {"0.6b": 0.596, "1.7b": 1.72, "4b": 4.02, "8b": 8.1, "1b": 1.236, "135m": 0.1345}
"""Billions of parameters, as the models' cards give them (8.19 and 8.03 are both 8b)."""
ROWS = TESTS / "data" / "gsm8k_shaped.jsonl"
GSM8K = [f"env.options={{source: jsonl, path: '{ROWS}', test_share: 0.5}}"]
COIN = f"{TESTS / 'data' / 'coin.py'}:coin"
WITHOUT_HUB = {
    "gsm8k": GSM8K, "code_exec": [f"env={{name: '{TESTS / 'data' / 'any_answer.py'}:AnyAnswer'}}"], "tool_use": [],
}  # fmt: skip
"""What makes a task one that random weights can be trained on, without a network."""
ON_CPU = [
    "trainer.device=cpu", "trainer.procs=1", "trainer.dtype=float32", "trainer.compile=false", "trainer.seq_len=1024",
    "generator.device=cpu", "generator.dtype=float32", "generator.engine={name: native}", "generator.replicas=1",
    "generator.max_model_len=1024", "generator.max_batch=8", "weights.store={name: shared_memory}",
    "rollout.max_turn_tokens=8", "rollout.max_episode_tokens=1024", "rollout.max_turns=2", "rollout.cut_turns=score",
    "eval.at_end=false", "model.random_weights=true", "logging.sinks=[]", "sandbox.name=monty",
]  # fmt: skip
STEPS = ["loop.steps=2", "loop.groups_per_step=2", "loop.group_size=4", "loop.eval_every=0", "loop.checkpoint_every=0"]


def recipes(kind: str) -> list[str]:
    return [path.stem for path in sorted((APPS / kind).glob("*.yaml")) if EXTENDS in read_yaml(path)]


@pytest.mark.parametrize("kind", ["grpo", "sft"])
def test_every_model_has_a_recipe_and_each_is_read_with_every_task_and_number_of_gpus(kind: str) -> None:
    assert recipes(kind) == NAMES
    places = [
        gpus for gpus in GPUS if kind == "grpo" or "loop" not in read_recipe_files([gpus])[0]
    ]  # nothing takes turns in fine-tuning
    for number, name in enumerate(NAMES):
        for turn, task in enumerate(TASKS):
            gpus = places[(number + turn) % len(places)]
            mapping, where = read_recipe_files([APPS / kind / f"{name}.yaml", task, gpus])
            made = finish_recipe(mapping, where=where)[0]
            assert made.rollout.max_turns is None and len(made.rewards) == len(read_yaml(task)["rewards"])
            lengths = {made.rollout.max_episode_tokens, made.generator.max_model_len, made.trainer.seq_len}
            assert len(lengths) == 1 and made.trainer.dtype == made.generator.dtype == "bfloat16"
            assert (made.trainer.procs, made.generator.replicas) == {
                "one": (1, 1), "one_in_turns": (1, 1), "two": (1, 1), "two_in_turns": (2, 2), "four": (2, 2),
                "eight": (4, 4),
            }[gpus.stem]  # fmt: skip
            billions = architecture_of(RELEASED[made.model.path], name).num_parameters / 1e9
            assert billions == pytest.approx(SIZES[name.rpartition("_")[2]], rel=0.015), name


def test_every_recipe_and_every_task_is_trained_below() -> None:
    assert [*TASK_OF] == recipes("grpo") == recipes("sft") == NAMES
    assert {*TASK_OF.values()} == {task.stem for task in TASKS} == {*WITHOUT_HUB}
    assert {*LESS_MEMORY.values()} == {path.stem for path in (APPS / "presets" / "memory").glob("*.yaml")}


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("name", NAMES)
def test_a_models_recipe_trains_two_steps(lab, tmp_path: Path, name: str) -> None:
    from transformers import AutoTokenizer

    task = APPS / "presets" / "tasks" / f"{TASK_OF[name]}.yaml"
    memory = [APPS / "presets" / "memory" / f"{LESS_MEMORY[name]}.yaml"] if name in LESS_MEMORY else []
    mapping, where = read_recipe_files(
        [APPS / "grpo" / f"{name}.yaml", task, GPUS[NAMES.index(name) % len(GPUS)], *memory]
    )
    released = mapping["model"]["path"]
    more = [
        f"model.path={write_small(released, tmp_path / 'model')}",
        lab.in_process,
        *ON_CPU,
        *STEPS,
        *WITHOUT_HUB[task.stem],
    ]
    mapping["rewards"] = {**mapping["rewards"], COIN: 1.0}  # all else is too hard for random weights
    recipe, _ = finish_recipe(apply_overrides(mapping, more), where=where)
    with closing(lab.new_run(recipe)) as folder:
        asyncio.run(train(recipe, folder, lab.reporter()))
        assert [row.step for row in folder.read_metrics()] == [1, 2]
        assert all(row.metrics["train/trained_tokens"] > 0 for row in folder.read_metrics())
        assert (folder.checkpoint_dir(2) / "hf" / "adapter").exists() == (LESS_MEMORY.get(name) == "adapters")
        exported = AutoTokenizer.from_pretrained(folder.checkpoint_dir(2) / "hf")
    assert exported.chat_template == template_of(released)


@pytest.mark.slow
@pytest.mark.hostile
@pytest.mark.parametrize("name", [*NAMES, "warm_start"])
def test_a_recipe_of_fine_tuning_trains_two_steps(lab, tmp_path: Path, name: str) -> None:
    mapping, where = read_recipe_files([APPS / "sft" / f"{name}.yaml"])
    more = ["sft.oracle_tasks=3", "sft.steps=2", "sft.batch_size=2", lab.in_process, *ON_CPU]
    if name in NAMES:
        more += [f"model.path={write_small(mapping['model']['path'], tmp_path / 'model')}", *GSM8K]
    else:
        more += ["model.random_weights=false", "eval.tasks=2"]
    recipe, _ = finish_recipe(apply_overrides(mapping, more), where=where)
    with closing(lab.new_run(recipe)) as folder:
        asyncio.run(train(recipe, folder, lab.reporter()))
        assert [row.step for row in folder.read_metrics()] == [1, 2]
