"""Recipe files that extend others, and torchforge's names in them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.generators.select import VllmEngineConfig
from agentgym.recipe import Recipe
from agentgym.run.layers import COMMAND_LINE, finish_recipe
from agentgym.run.recipe_files import read_recipe_files


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.yaml").write_text(text)


def read(folder: Path, *names: str) -> Recipe:
    mapping, where = read_recipe_files([folder / f"{name}.yaml" for name in names])
    return finish_recipe(mapping, base=mapping, where=where)[0]


def test_a_recipe_lays_its_fields_over_those_it_extends_and_a_later_file_over_both(tmp_path: Path) -> None:
    write(
        tmp_path,
        task="env: {name: math, options: {levels: [1]}}\nrewards: {success: 1.0, format: 0.5}\nrollout: {max_turns: 1}",
        gpus="trainer: {procs: 4, seq_len: 256}\nloss: {name: grpo, clip_low: 0.1}",
        mine="extends: [task.yaml, gpus.yaml]\ntrainer: {procs: 2}\nloss: {clip_high: 0.4}",
        other="env: {name: code_exec}\nrewards: {success: 2.0}\nrollout: {max_turns: null}\nloss: {name: reinforce}",
    )
    made = read(tmp_path, "mine")
    assert (made.trainer.procs, made.trainer.seq_len) == (2, 256)
    assert (made.env.options, made.rewards) == ({"levels": [1]}, {"success": 1.0, "format": 0.5})
    assert (made.loss.clip_low, made.loss.clip_high) == (0.1, 0.4)  # type: ignore[attr-defined]
    made = read(tmp_path, "mine", "other")
    assert made.env.options == {} and made.rewards == {"success": 2.0} and made.rollout.max_turns is None
    assert type(made.loss).__name__ == "Reinforce" and made.trainer.procs == 2


def test_a_mistake_is_named_with_the_file_that_has_it(tmp_path: Path) -> None:
    write(tmp_path, base="trainer:\n  prcs: 4\n", mine="extends: base.yaml\nloop: {steps: 3}\n")
    with pytest.raises(
        UserError, match=r"base\.yaml: there is no field 'trainer\.prcs'\. Did you mean 'trainer\.procs'"
    ):
        read(tmp_path, "mine")
    write(tmp_path, base="trainer:\n  procs: four\n")
    with pytest.raises(UserError, match=r"base\.yaml: trainer\.procs is 'four' \(str\)"):
        read(tmp_path, "mine")
    write(tmp_path, mine="extends: bse.yaml")
    with pytest.raises(
        UserError, match=r"mine\.yaml: extends: no config file .*bse\.yaml'\. Did you mean 'base\.yaml'"
    ):
        read(tmp_path, "mine")
    write(tmp_path, mine="extends: {file: base.yaml}")
    with pytest.raises(UserError, match=r"mine\.yaml: extends is .*give a recipe's file"):
        read(tmp_path, "mine")


def test_a_recipe_that_extends_itself_is_refused(tmp_path: Path) -> None:
    write(tmp_path, one="extends: two.yaml", two="extends: [one.yaml]")
    with pytest.raises(UserError, match=r"can't extend itself: .*one\.yaml extends .*two\.yaml extends .*one\.yaml"):
        read(tmp_path, "one")


def test_the_source_of_a_field_is_its_file(tmp_path: Path) -> None:
    write(tmp_path, base="trainer: {procs: 4}", mine="extends: base.yaml\nloop: {steps: 3}")
    base, where = read_recipe_files([tmp_path / "mine.yaml"])
    given = apply_overrides(base, ["loop.steps=5"])
    sources = finish_recipe(given, base=base, where=where)[1]
    assert (sources["trainer.procs"], sources["loop.steps"]) == (str(tmp_path / "base.yaml"), COMMAND_LINE)


FORGE = """
services:
  generator: {procs: 2, num_replicas: 3, mesh_name: generator, with_gpus: true}
  ref_model: {procs: 1, with_gpus: true}
actors:
  trainer: {procs: 4, with_gpus: false}
"""


def test_torchforges_names_are_read_as_ours_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, forge=FORGE)
    made = read(tmp_path, "forge")
    assert (made.generator.replicas, made.generator.device, made.trainer.procs, made.trainer.device) == (
        3, "cuda", 4, "cpu",
    )  # fmt: skip
    assert made.generator.engine.gpus_per_replica == 2
    assert "services.generator.num_replicas is read as generator.replicas: 3" in caplog.messages
    assert "services.ref_model.with_gpus decides nothing here; leave it out" in caplog.messages
    base, where = read_recipe_files([tmp_path / "forge.yaml"])
    given = apply_overrides(base, ["services.generator.num_replicas=5"])  # the command line wins
    assert finish_recipe(given, base=base, where=where)[0].generator.replicas == 5
    twice = ["services.generator.num_replicas=5", "generator.replicas=7"]
    for before, name in ((base, where), ({}, COMMAND_LINE)):
        with pytest.raises(
            UserError, match=r"^command line: .*num_replicas is 5 and generator\.replicas is 7.*keep one"
        ):
            finish_recipe(apply_overrides(before, twice), base=before, where=name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("services: {generatr: {procs: 1}}", r"there is no 'services\.generatr'\. Did you mean 'generator'"),
        ("services: {trainer: {prcs: 1}}", r"no 'services\.trainer\.prcs'\. Did you mean 'procs'"),
        ("services: {trainer: {procs: 2}}\ntrainer: {procs: 3}", r"procs is 2 and trainer\.procs is 3.*keep one"),
        ("services: [1]", r"services is \[1\]; it has a section for each service"),
        ("services: {trainer: {procs: two}}", r"trainer\.procs is 'two'"),
    ],
)
def test_mistakes_in_torchforges_names_are_explained(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path, forge=text)
    with pytest.raises(UserError, match=rf"(?s)forge\.yaml.*{message}"):
        read(tmp_path, "forge")


VLLM = """
generator:
  vllm: {quantization: fp8, tensor_parallel_size: 2, gpu_memory_utilization: 0.7, max_num_seqs: 32}
"""


def test_vllms_arguments_are_read_under_its_own_names(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, fast=VLLM)
    made = read(tmp_path, "fast").generator
    assert made.max_batch == 32 and made.engine == VllmEngineConfig(
        tensor_parallel=2, gpu_memory_utilization=0.7, options={"quantization": "fp8"}
    )
    assert "generator.vllm.tensor_parallel_size is read as generator.engine.tensor_parallel: 2" in caplog.messages
    base, where = read_recipe_files([tmp_path / "fast.yaml"])
    given = apply_overrides(base, ["generator.vllm.quantization=awq"])
    engine = finish_recipe(given, base=base, where=where)[0].generator.engine
    assert isinstance(engine, VllmEngineConfig) and engine.options == {"quantization": "awq"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("generator: {vllm: fp8}", r"generator\.vllm is 'fp8'; it has vLLM's engine arguments"),
        ("generator: {engine: native, vllm: {seed: 1}}", r"generator\.vllm is set, but .*name is 'native'"),
        ("generator: {vllm: {tokenizer: x}}", r"options\.tokenizer can't be set: it follows from model\.path"),
        (
            "group_size: 8\nmodel: Qwen/Qwen3-0.6B\nrollout: {temperature: 1.0}\n"
            "trainer: {optimizer: {lr: 1.0e-5}, parallelism: {pipeline: 2}, procs: 2}\n"
            "policy: {engine_args: {seed: 1}}",
            r"other names here.*\n  group_size: loop\.group_size\n  trainer\.optimizer\.lr: optimizer\.lr"
            r"\n  policy\.engine_args: generator\.vllm\n  model: model\.path"
            r"\n  not here, leave out: trainer\.parallelism\.pipeline\n`agentgym convert .*forge\.yaml` writes them",
        ),
        (
            "model: {flavor: 8B}\noptimizer: {lr: 1.0e-5}\ntraining: {steps: 9, gc_freq: 1}\ncompile: true",
            r"other names here.*:\n  model\.flavor: model\.path\n  training\.steps: sft\.steps"
            r"\n  compile: trainer\.compile\n  not here, leave out: training\.gc_freq\n",
        ),
        ("trainer: {compile: {enable: true}}", r"\n  trainer\.compile\.enable: trainer\.compile\n"),
        ("model: {pathh: x}", r"no field 'model\.pathh'\. Did you mean 'model\.path'"),
        ("trainer: {prcs: 1}", r"no field 'trainer\.prcs'\. Did you mean 'trainer\.procs'"),
    ],
)
def test_settings_of_torchforge_and_vllm_that_are_not_ours_are_explained(
    tmp_path: Path, text: str, message: str
) -> None:
    write(tmp_path, forge=text)
    with pytest.raises(UserError, match=rf"(?s)forge\.yaml.*{message}"):
        read(tmp_path, "forge")


@pytest.mark.parametrize("text", ["model: {}", "trainer:", "trainer: {compile: true}"])
def test_our_own_sections_are_not_taken_for_torchforges(tmp_path: Path, text: str) -> None:
    write(tmp_path, ours=text)
    assert isinstance(read(tmp_path, "ours"), Recipe)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "command"), [("apps.grpo.main", "apps.grpo.main"), ("apps.sft.main", "agentgym sft")]
)
def test_torchforges_way_to_start_is_a_program_of_ours(module: str, command: str) -> None:
    words = [sys.executable, "-m", module, "--config", "gone.yaml", "services.trainer.procs=2"]
    done = subprocess.run(words, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert done.returncode == 2 and "no config file 'gone.yaml'" in done.stderr
    helped = subprocess.run([*words[:3], "--help"], cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert command in helped.stdout
