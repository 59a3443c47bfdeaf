"""What is said to fit instead: changes that the planner then accepts, as the command line has them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.config import apply_overrides
from agentgym.families.registry import architecture_of
from agentgym.models.released import RELEASED
from agentgym.planning.advice import advice, as_words
from agentgym.planning.changes import Changes, alone, together
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.memory import kv_token_gib
from agentgym.planning.placement import Wanted, assign
from agentgym.run.layers import finish_recipe
from agentgym.run.placement import wanted_of
from agentgym.run.recipe_files import read_recipe_files

APPS = Path(__file__).parents[2] / "apps"


def machine(count: int, gib: float) -> Machine:
    return Machine(gpus=(Gpu(name="some", memory_gib=gib),) * count, cores=8)


def wanted(files: str, *words: str) -> Wanted:
    """Of recipe files below apps, with a command line's words."""
    mapping, where = read_recipe_files([APPS / f"{name}.yaml" for name in files.split()])
    given = apply_overrides(mapping, list(words))
    made = finish_recipe(given, where=where)[0]
    return wanted_of(made, architecture_of(RELEASED[made.model.path], made.model.path))


def typed(changes: Changes) -> list[str]:
    """As who reads the advice types it."""
    return [f"{key}={value}" for key, value in re.findall(r"--(\S+) (\S+)", as_words(changes))]


TOO_LARGE = [  # files, GPUs, GiB of each
    ("grpo/qwen3_8b presets/gpus/eight", 8, 79),
    ("grpo/qwen3_8b", 8, 79),
    ("grpo/qwen3_8b", 4, 39),
    ("grpo/qwen3_8b", 1, 79),
    ("grpo/qwen3_4b", 2, 79),
    ("grpo/qwen3_4b", 1, 139),
    ("grpo/qwen3_4b presets/gpus/one", 1, 139),
    ("grpo/qwen3_0.6b", 1, 23),
    ("grpo/qwen3_0.6b presets/gpus/one", 1, 23),
    ("sft/qwen3_4b", 1, 79),
]


@pytest.mark.parametrize(("files", "count", "gib"), TOO_LARGE)
def test_what_is_advised_fits_when_the_command_line_says_it(files: str, count: int, gib: float) -> None:
    given, there = wanted(files), machine(count, gib)
    assert not assign(given, there).fits
    single = [remedy.changes for remedy in alone(given, there)]
    several = [found for adapters in (True, False) if (found := together(given, there, adapters=adapters))]
    assert single or several
    for changes in [*single, *several]:
        assert assign(wanted(files, *typed(changes)), there).fits, changes
    for changes in several:
        for key in changes:
            if key not in ("generator.engine.sleep", "loop.max_staleness"):  # that go together
                fewer = {name: value for name, value in changes.items() if name != key}
                assert not assign(wanted(files, *typed(fewer)), there).fits, f"{changes}: {key} is not needed"


def test_the_order_is_by_cost_and_adapters_come_last() -> None:
    given, there = wanted("grpo/qwen3_4b presets/gpus/one"), machine(1, 139)
    lines = advice(given, assign(given, there)).split("\n")
    assert lines[0] == "Each of these alone would fit:"
    assert [line.split()[0] for line in lines[1:]] == [
        "--generator.engine.gpu_memory_utilization", "--trainer.rows_per_microbatch", "--trainer.activation_checkpoint",
        "--generator.engine.sleep", "--trainer.lora.rank",
    ]  # fmt: skip
    assert lines[4].split()[:4] == ["--generator.engine.sleep", "True", "--loop.max_staleness", "0"]


@pytest.mark.parametrize(
    ("files", "words", "count", "gib", "field", "value"),
    [
        ("grpo/qwen3_8b presets/gpus/eight", ["trainer.activation_checkpoint=selective"], 8, 79, "weights.keep", 1),
        ("grpo/qwen3_8b", ["weights.keep=1"], 6, 112, "trainer.procs", 3),
        ("grpo/qwen3_4b", ["generator.replicas=6"], 6, 139, "generator.replicas", 5),
        ("grpo/qwen3_8b", ["weights.keep=1"], 4, 79, "trainer.lora.rank", 32),
        ("grpo/qwen3_8b", ["trainer.gpus=[0, 9]"], 4, 139, "trainer.gpus", []),
    ],
)
def test_the_mildest_value_of_each_kind_is_found(
    files: str, words: list[str], count: int, gib: float, field: str, value: object
) -> None:
    found = alone(wanted(files, *words), machine(count, gib))
    assert {field: value} in [remedy.changes for remedy in found]


def test_a_cache_too_small_for_a_sequence_is_made_larger_beside_other_changes() -> None:
    files, words, there = "grpo/qwen3_4b", ["generator.engine.gpu_memory_utilization=0.12"], machine(2, 79)
    several = together(wanted(files, *words), there)
    share = several["generator.engine.gpu_memory_utilization"]
    assert isinstance(share, float) and 0.12 < share < 0.5 and "trainer.rows_per_microbatch" in several
    assert assign(wanted(files, *words, *typed(several)), there).fits


def test_where_vllm_cannot_hold_an_eighth_of_its_batch_it_is_left_some() -> None:
    """Qwen3 4B on one GPU of 24 GB, in turns with adapters; and 8B, which that GPU holds no such batch of at all."""
    files, there = "grpo/qwen3_4b presets/gpus/one", machine(1, 23.6)
    several = together(wanted(files), there)
    assert several["trainer.lora.rank"] and several["generator.engine.sleep"] and several["loop.max_staleness"] == 0
    assert assign(wanted(files, *typed(several)), there).fits
    large = wanted("grpo/qwen3_8b presets/gpus/one")
    said = advice(large, assign(large, there))
    assert "such GPUs with --trainer.procs" in said and "--model.path Qwen/Qwen3-4B " in said


def test_fewer_sequences_at_a_time_are_advised_where_a_cache_of_ours_is_too_large() -> None:
    host = Machine(cores=8, memory_gib=16.0)
    words = ["trainer.device=cpu", "generator.device=cpu", "generator.engine={name: native}", "generator.max_batch=256"]
    given = wanted("grpo/smollm2_135m", *words, "weights.store=shared_memory")
    found = alone(given, host)
    [batch] = [remedy.changes["generator.max_batch"] for remedy in found if "generator.max_batch" in remedy.changes]
    assert isinstance(batch, int) and 8 <= batch < 256
    assert not assign(replace(given, generator=replace(given.generator, max_batch=2 * batch)), host).fits  # type: ignore[type-var]


@pytest.mark.parametrize(("files", "count", "gib"), TOO_LARGE)
def test_vllm_is_left_room_for_an_eighth_of_its_batch(files: str, count: int, gib: float) -> None:
    given, there = wanted(files), machine(count, gib)
    generator = given.generator
    assert generator is not None
    sequence = generator.max_model_len * kv_token_gib(given.model, generator)
    for changes in [*(remedy.changes for remedy in alone(given, there)), together(given, there)]:
        if "generator.engine.gpu_memory_utilization" not in changes:
            continue
        placement = assign(wanted(files, *typed(changes)), there)
        caches = [proc.parts["cache"] for proc in placement.procs if "engine" in proc.parts]
        assert min(caches) >= generator.max_batch / 8 * sequence


def test_an_engine_that_is_left_open_is_named_with_its_settings() -> None:
    files, there = "grpo/qwen3_4b presets/gpus/one", machine(1, 139)
    auto = wanted(files, "generator.engine={name: auto}")
    found = [remedy.changes for remedy in alone(auto, there)]
    named = [changes for changes in found if changes.get("generator.engine.name") == "vllm"]
    assert named and all(assign(wanted(files, *typed(changes)), there).fits for changes in named)


CPU = ("trainer.device=cpu", "generator.device=cpu", "generator.max_batch=8", "trainer.rows_per_microbatch=1")


@pytest.mark.parametrize("free_mib", [64, 100, 512, 1024])
def test_a_small_shared_memory_is_to_be_made_larger_before_anything_else(free_mib: int) -> None:
    given = wanted("grpo/smollm2_135m", *CPU, "weights.store=shared_memory")
    there = Machine(cores=2, memory_gib=32.0, shared_memory_gib=free_mib / 1024)
    (problem,) = assign(given, there).problems
    assert f"/dev/shm has {free_mib} MiB free" in problem.replace("1.0 GiB", "1024 MiB")
    said = advice(given, assign(given, there))
    assert said.startswith("Make /dev/shm larger: docker run --shm-size 2g") and "--model.path" not in said
    assert assign(given, replace(there, shared_memory_gib=2.0)).fits


@pytest.mark.parametrize("memory_gib", [1.0, 4.0, 7.0, 12.0])
@pytest.mark.parametrize("shared_memory_gib", [None, 0.0625, 8.0])
def test_a_machine_without_gpus_gets_advice_for_all_that_it_lacks(memory_gib, shared_memory_gib) -> None:
    given = wanted("grpo/smollm2_135m", *CPU, "weights.store=shared_memory", "generator.max_batch=64")
    there = Machine(cores=2, memory_gib=memory_gib, shared_memory_gib=shared_memory_gib)
    said = advice(given, assign(given, there))
    assert ("--shm-size" in said) == (shared_memory_gib == 0.0625)
    assert said.removeprefix("Make /dev/shm larger") and "GPU" not in said
