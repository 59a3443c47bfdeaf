"""The benchmarks that are made for GPUs: their settings are valid, and their figures are those of what ran."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from finishing import finished

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def step(clock: float, step_s: float, *, train_s: float, busy_s: float, tokens: float) -> dict[str, float]:
    return {
        "time": clock,
        "time/step_s": step_s,
        "time/train_s": train_s,
        "time/generate_s": step_s - train_s,
        "generator/busy_s": busy_s,
        "generator/tokens_total": tokens,
        "rollout/success_mean": 0.5,
        "loop/staleness_mean": 0.0,
    }


def test_figures_of_the_loop_leave_out_what_compiles_and_are_shown_by_both_limits() -> None:
    from benchmarks.loop import IN_FLIGHT, figures_of, table

    rows = [step(100.0, 9.0, train_s=8.0, busy_s=1.0, tokens=1000)]
    for number in range(1, 6):
        again = 10.0 if number == 3 else 0.0  # a step that compiles again does not move the limit
        rows.append(step(rows[-1]["time"] + 4 + again, 4.0 + again, train_s=1.0 + again,
                         busy_s=1.0 + 6.0 * number, tokens=1000.0 + 300 * number))  # fmt: skip
    one = figures_of(rows, slice(1, 6), replicas=2)
    assert (one["time/step_s"], one["time/generate_s"], one["time/train_s"], one["mean_s"]) == (4.0, 3.0, 1.0, 6.0)
    assert (one["generators_busy"], one["trainer_busy"], one["tokens"]) == (0.5, 0.5, 300.0)
    found = {"staleness 0": one, "staleness 1": one | {"time/step_s": 3.3}, IN_FLIGHT: one | {"tokens_per_s": 150.0}}
    last = table(found).splitlines()[-1].split(" | ")
    assert last[:6] == ["| 1", "3.30", "6.00", "1.10", "1.65", "1.21"]
    alone = table({"staleness 0": one}).splitlines()[-1].split(" | ")
    assert alone[:6] == ["| 0", "4.00", "6.00", "1.33", "-", "1.00"]


@pytest.mark.parametrize("engine", ["TailedVllm", "FullVllm", "TailedNative", "FullNative"])
def test_random_weights_with_each_engine_are_a_recipe(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.loop import random_fields
    from benchmarks.random_model import write_folder

    monkeypatch.syspath_prepend(BENCHMARKS)
    write_folder("Qwen/Qwen3-1.7B", tmp_path)
    recipe = finished([BENCHMARKS.parent / "apps" / "grpo" / "qwen3_1.7b.yaml"], random_fields(tmp_path, 64, engine))
    assert type(recipe.generator.engine).__name__ == engine and recipe.rollout.max_turn_tokens == 64


def test_weights_are_drawn_once_for_a_shape(tmp_path: Path) -> None:
    from benchmarks.random_model import has_weights, write_folder

    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True)
    assert not has_weights(tmp_path)
    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True, weights=True)
    drawn = (tmp_path / "model.safetensors").stat().st_mtime_ns
    write_folder("Qwen/Qwen3-0.6B", tmp_path, tiny=True, weights=True)
    assert (tmp_path / "model.safetensors").stat().st_mtime_ns == drawn
    write_folder("Qwen/Qwen3-0.6B", tmp_path)
    assert not has_weights(tmp_path), "weights of another shape"


def test_documents_of_a_mixture_have_different_experts_and_its_mfu_counts_those_of_a_token(tmp_path: Path) -> None:
    import numpy as np

    from agentgym.families.registry import read_architecture
    from benchmarks.random_model import write_folder
    from benchmarks.trainer import active_parameters, random_routes

    write_folder("Qwen/Qwen3-30B-A3B", tmp_path, tiny=True, num_experts=4, num_experts_per_tok=3)
    model = read_architecture(tmp_path)
    routes = random_routes(model, 7, 50)
    ids = np.frombuffer(routes.ids, dtype="<u2").reshape(50, 2, 3)
    assert routes.width == 6 and {len(set(row)) for row in ids.reshape(-1, 3).tolist()} == {3} and ids.max() == 3
    experts = 2 * 4 * 3 * 128 * 64  # layers, experts, matrices
    assert active_parameters(model) == model.num_parameters - experts / 4


def test_a_tailed_length_follows_from_the_seed_and_without_one_it_is_what_was_asked_for() -> None:
    from agentgym.types import GenerateRequest, SamplingParams
    from benchmarks.random_model import shortened

    def length(seed: int | None) -> int:
        sampling = SamplingParams(max_tokens=1000, seed=seed)
        return int(shortened(GenerateRequest(prompt_ids=(1,), sampling=sampling)).sampling.max_tokens)

    lengths = [length(seed) for seed in range(500)]
    assert lengths == [length(seed) for seed in range(500)] and min(lengths) < 50 and max(lengths) == 1000
    assert 100 < sorted(lengths)[250] < 160 and {length(None) for _ in range(20)} == {1000}


async def test_an_engine_that_is_asked_for_other_lengths_is_still_one_that_merges_adapters() -> None:
    """From Python 3.12 on a wrapper that passes attributes on is no instance of the protocol: models were merged on the
    CPU and written whole for every update."""
    from agentgym.generators.engine import MergesAdapters
    from agentgym.types import GenerateRequest, SamplingParams
    from benchmarks.random_model import changed, unstopped

    class Engine:
        merges_adapters = True

        async def generate(self, request: GenerateRequest) -> GenerateRequest:
            return request

    engine = changed(Engine(), unstopped)
    assert isinstance(engine, Engine) and isinstance(engine, MergesAdapters)
    asked = GenerateRequest(prompt_ids=(1,), sampling=SamplingParams(max_tokens=9, stop_token_ids=(2,)))
    assert (await engine.generate(asked)).sampling == SamplingParams(max_tokens=9)


def test_each_round_of_generation_prefills_new_prompts_of_the_same_lengths() -> None:
    import argparse

    from benchmarks.generation import LOADS, TURNS, conversations_of

    arguments = argparse.Namespace(requests=20, prompt=32, tokens=64)
    for load in LOADS:
        rounds = [conversations_of(arguments, load, number) for number in range(3)]
        assert rounds[1] == conversations_of(arguments, load, 1), "each arm gets the same"
        prompts = [turns[0].prompt_ids for one in rounds for turns in one]
        assert len({prompt[:16] for prompt in prompts}) == len(prompts), "a block of the prefix cache is found again"
        lengths = {tuple(turn.sampling.max_tokens for turns in one for turn in turns) for one in rounds}
        assert len(lengths) == 1 and all(len(turns) == (TURNS if load == "turns" else 1) for turns in rounds[0])
        assert max(sum(turn.sampling.max_tokens for turn in turns) for turns in rounds[0]) <= arguments.tokens


async def test_a_turn_of_a_conversation_has_all_that_was_said_before_it() -> None:
    from agentgym.types import GenerateRequest, SamplingParams
    from benchmarks.generation import converse

    asked: list[tuple[tuple[int, ...], bool]] = []

    async def generate(request: GenerateRequest) -> list[int]:
        asked.append((request.prompt_ids, request.continues))
        return [100 + len(asked)] * 2

    sampling = SamplingParams(max_tokens=2)
    turns = [GenerateRequest(prompt_ids=(n, n), sampling=sampling, continues=n > 1) for n in (1, 2, 3)]
    assert await converse(generate, turns) == 6
    first, second = (1, 1), (1, 1, 101, 101, 2, 2)
    assert asked == [(first, False), (second, True), ((*second, 102, 102, 3, 3), True)]


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.filterwarnings("ignore")  # vllm's own
def test_vllm_alone_is_asked_for_what_our_engine_asks_it_for() -> None:
    import argparse

    from agentgym.generators.vllm.settings import sampling_params
    from benchmarks.generation import conversations_of, raw_sampling

    [[request]] = conversations_of(argparse.Namespace(requests=1, prompt=4, tokens=64), "equal", 1)
    assert repr(raw_sampling(request)) == repr(sampling_params(request.sampling))


def test_medians_leave_out_the_steps_that_compile_and_are_empty_before_one_counts() -> None:
    from benchmarks.trainer import medians_of

    rows = [{"step_s": seconds} for seconds in (60.0, 20.0, 1.0, 9.0, 2.0)]
    assert medians_of(rows, 2) == {"step_s": 2.0}
    assert medians_of(rows[:2], 2) == {}


@pytest.mark.hostile
def test_the_limit_of_the_loop_is_measured_in_one_run(tmp_path: Path) -> None:
    from benchmarks.random_model import write_folder

    write_folder("Qwen/Qwen3-0.6B", tmp_path / "model", tiny=True, weights=True)
    fields = ["trainer.device=cpu", "generator.device=cpu", "trainer.check_memory=false", "generator.max_batch=8"]
    fields += ["loop.groups_per_step=2", "loop.group_size=4", "weights.store={name: shared_memory}"]
    words = [str(BENCHMARKS.parent / "apps" / "grpo" / "qwen3_1.7b.yaml"), "--random", str(tmp_path / "model")]
    words += ["--engine", "FullNative", "--tokens", "10", "--prompt-tokens", "80", "--staleness", "1"]
    words += ["--steps", "3", "--skip", "1", "--settle", "1", "--out", str(tmp_path / "runs")]
    words += [word for field in fields for word in ("--set", field)]
    command = [sys.executable, str(BENCHMARKS / "loop.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    rows = {row.pop("phase"): row for row in said}
    assert list(rows) == ["staleness 0", "staleness 1", "always in flight"]
    assert [rows[name]["loop/staleness_mean"] for name in ("staleness 0", "staleness 1")] == [0.0, 1.0]
    assert rows["always in flight"]["time/train_s"] == 0.0
    assert all(row["rollout/completion_tokens_mean"] == 10 for row in rows.values())


@pytest.mark.hostile
def test_adapters_publish_fewer_bytes_than_all_weights(tmp_path: Path) -> None:
    from benchmarks.random_model import write_folder

    write_folder("Qwen/Qwen3-0.6B", tmp_path / "model", tiny=True)
    sizes = []
    for rank in ("0", "4"):
        words = ["--device", "cpu", "--rounds", "1", "--requests", "2", "--tokens", "16", "--lora-rank", rank]
        command = [sys.executable, str(BENCHMARKS / "weights.py"), str(tmp_path / "model"), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        sizes.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))["gb"])
    assert 0 < sizes[1] < sizes[0] / 2
