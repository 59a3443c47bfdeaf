"""Recipes of torchforge become recipes of ours: names, values, references, and what has no counterpart."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentgym.cli.main import main
from agentgym.errors import UserError
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.torchforge_recipe import convert
from agentgym.yaml import parse_yaml

PROGRAM = """
group_size: 4
local_batch_size: 6
max_req_tokens: 128
max_res_tokens: 64
model: "Qwen/Qwen3-0.6B"
off_by_n: 2
dataset: {path: openai/gsm8k, revision: main, data_split: train, model: "${model}"}
metric_logging: {wandb: {group: "by_${oc.env:NOBODY_SETS_THIS}"}}
policy:
  engine_args: {model: "${model}", tensor_parallel_size: 2, seed: 7}
  sampling_params: {n: "${group_size}", max_tokens: "${max_res_tokens}", top_p: 0.9}
trainer:
  model: {name: qwen3, hf_assets_path: "hf://${model}"}
  optimizer: {name: AdamW, lr: 1e-5}
  training: {local_batch_size: "${local_batch_size}", seq_len: "${sum:${max_req_tokens},${max_res_tokens}}", steps: 9}
  parallelism: {data_parallel_shard_degree: 2}
  activation_checkpoint: {mode: full}
replay_buffer: {batch_size: "${local_batch_size}", dp_size: "${trainer.parallelism.data_parallel_shard_degree}"}
ref_model: {training: {seq_len: "${trainer.training.seq_len}"}}
services: {policy: {procs: 2, num_replicas: 3, with_gpus: false}, reward_actor: {procs: 1}}
actors: {trainer: {procs: 2, with_gpus: true, mesh_name: trainer}}
"""
MATH = """
model: Qwen/Qwen2.5-7B-Instruct
dataset: {path: openai/gsm8k, split: train}
training: {batch_size: 4, learning_rate: 1e-6, gradient_accumulation_steps: 4, sync_interval: 2, entropy_coef: 0.01}
grpo: {n_samples: 8, clip_low: 0.2, clip_high: 0.3, beta: 0.1, temperature: 0.7}
ref_model: {with_gpus: false}
services: {generator: {procs: 4}}
"""


def test_names_values_and_references_become_ours_and_the_rest_is_said(tmp_path: Path) -> None:
    text = convert(parse_yaml(PROGRAM, where=""), "forge.yaml").text("forge.yaml")  # type: ignore[arg-type]
    mapping = parse_yaml(text, where="")
    assert isinstance(mapping, dict)
    made, _ = finish_recipe(mapping)
    loop, rollout, trainer = made.loop, made.rollout, made.trainer
    assert (loop.group_size, loop.groups_per_step, loop.max_staleness, loop.steps) == (4, 3, 2, 9)
    assert (rollout.max_episode_tokens, rollout.max_turn_tokens, rollout.top_p) == (192, 64, 0.9)
    assert (made.model.path, made.optimizer.lr, made.logging.sinks) == ("Qwen/Qwen3-0.6B", 1e-5, ("wandb",))
    assert (trainer.seq_len, trainer.procs, trainer.data_parallel_shard, trainer.activation_checkpoint) == (
        192, 2, 2, "full",
    )  # fmt: skip
    assert mapping["generator"]["engine"] == {"name": "vllm", "tensor_parallel": 2, "options": {"seed": 7}}
    assert (made.generator.replicas, made.generator.device, trainer.device) == (3, "cpu", "cuda")
    assert made.env.options == {"source": "hub", "path": "openai/gsm8k", "subset": "main"}
    for line in (
        "# loop.groups_per_step: replay_buffer.batch_size 6 x 2 ranks x 1 parts are 12, in groups of 4",
        "#   trainer.optimizer.name: AdamW",
        "#   ref_model.training.seq_len: 192",
        "#   services.reward_actor.procs: 1",
        "#   metric_logging.wandb.group: 'by_${oc.env:NOBODY_SETS_THIS}'",
    ):
        assert line in text.splitlines()
    assert "dataset.model" not in text, "what is said elsewhere is no comment"


def test_a_recipe_is_refused_with_our_names_and_the_command_that_converts_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, ours = tmp_path / "grpo_math.yaml", tmp_path / "ours.yaml"
    path.write_text(MATH)
    with pytest.raises(UserError) as refused:
        read_recipe_files([path])
    for line in (
        "training.batch_size: loop.groups_per_step",
        "training.gradient_accumulation_steps: loop.groups_per_step",
        "training.learning_rate: optimizer.lr",
        "training.sync_interval: loop.sync_interval",
        "grpo.n_samples: loop.group_size",
        "grpo.beta: loss.kl_coef",
        "ref_model.with_gpus: trainer.reference_gpus",
        f"`agentgym convert {path}` writes them as a recipe",
    ):
        assert line in str(refused.value)
    assert main(["convert", str(path), "--out", str(ours)]) == 0
    assert capsys.readouterr().out == f"{ours}: start it with `agentgym train {ours}`\n"
    mapping, where = read_recipe_files([ours])
    made, _ = finish_recipe(mapping, base=mapping, where=where)
    assert (made.loop.groups_per_step, made.loop.group_size, made.loop.sync_interval) == (2, 8, 2)
    assert (made.loss.kl_coef, made.loss.clip_high, made.rollout.temperature) == (0.1, 0.3, 0.7)  # type: ignore[attr-defined]
    assert made.generator.engine.gpus_per_replica == 4
    assert main(["convert", str(path), "--out", str(ours)]) == 2
    assert f"can't write {ours}: File exists; give another file as --out" in capsys.readouterr().err
    assert main(["convert", str(ours)]) == 2 and "is a recipe already" in capsys.readouterr().err


def test_a_recipe_of_fine_tuning_counts_conversations_and_says_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sft.yaml"
    path.write_text(
        "model_name: meta/L\nmodel: {name: llama3, hf_assets_path: 'hf://${model_name}'}\n"
        "processes: {procs: 8}\noptimizer: {lr: 1e-5}\ntraining: {local_batch_size: 2, steps: 9, dataset: c4}\n"
        "parallelism: {data_parallel_shard_degree: -1}\n"
    )
    assert main(["convert", str(path)]) == 1
    printed = capsys.readouterr()
    assert "It does not build yet: the recipe: sft has nothing to imitate" in printed.err
    assert parse_yaml(printed.out, where="") == {
        "sft": {"batch_size": 16, "steps": 9},
        "model": {"path": "meta/L"},
        "trainer": {"procs": 8, "data_parallel_shard": -1},
        "optimizer": {"lr": 1e-5},
    }
    path.write_text("group_size: '${group_size}'\n")
    assert main(["convert", str(path)]) == 2 and "group_size refers to itself" in capsys.readouterr().err


def test_values_that_are_no_numbers_or_refer_to_nothing_are_said(tmp_path: Path) -> None:
    for value, words in (("four", "'four'"), ("0", "0"), (".inf", "inf"), ("[1]", r"\[1\]")):
        with pytest.raises(UserError, match=rf"forge\.yaml: group_size is {words}; give a whole number of at least 1"):
            convert({"group_size": parse_yaml(value, where="")}, "forge.yaml")
    with pytest.raises(UserError, match=r"forge\.yaml: a\.b\.b\..* refers to itself"):
        convert({"group_size": 4, "a": {"b": "${a}"}}, "forge.yaml")
    made = convert(
        {
            "model": None,
            "group_size": "${nothing}",
            "local_batch_size": 4.0,
            "max_res_tokens": None,
            "n": 2,
            "inner": {"lr": "${n}"},
            "trainer": {"optimizer": "${inner}"},
            "policy": {"engine_args": {"sizes": ["${n}", 8]}},
        },
        "forge.yaml",
    )
    assert made.recipe == {
        "loop": {"groups_per_step": 4},
        "optimizer": {"lr": 2},
        "generator": {"engine": {"name": "vllm", "options": {"sizes": [2, 8]}}},
    }
    assert made.left["group_size"] == ("${nothing}", "it refers to what the file does not have")
    assert "max_res_tokens" in made.left and made.notes[-1].startswith("env: the file names none of ours, so code_exec")
