"""The benchmarks that run on GPUs alone: their settings are valid, and their figures are those of what ran."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finishing import finished

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def write_run(folder: Path, steps: list[dict[str, float]], replicas: int = 1) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(f"generator: {{replicas: {replicas}}}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(step) + "\n" for step in steps))
    return folder


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


def test_one_step_that_compiles_again_does_not_move_the_limit_of_the_loop(tmp_path: Path) -> None:
    from loop_limit import figures_of, summary, table  # type: ignore[import-not-found]

    rows = [step(100.0, 9.0, train_s=8.0, busy_s=1.0, tokens=1000)]
    for number in range(1, 6):
        again = 10.0 if number == 3 else 0.0
        rows.append(step(rows[-1]["time"] + 4 + again, 4.0 + again, train_s=1.0 + again,
                         busy_s=1.0 + 6.0 * number, tokens=1000.0 + 300 * number))  # fmt: skip
    synchronous = figures_of(write_run(tmp_path / "run", rows, replicas=2), slice(1, 6))
    assert (synchronous["time/step_s"], synchronous["time/generate_s"], synchronous["time/train_s"]) == (4.0, 3.0, 1.0)
    assert synchronous["mean_s"] == 6.0 and synchronous["steps_s"] == [9.0, 4.0, 4.0, 14.0, 4.0, 4.0]
    assert synchronous["generators_busy"] == pytest.approx(0.5)  # 30 s of two replicas in 30 s
    assert synchronous["trainer_busy"] == pytest.approx(0.5)
    assert synchronous["tokens"] == 300
    asynchronous = synchronous | {"time/step_s": 3.3}
    found = {"staleness 0": synchronous, "staleness 1": asynchronous, "always in flight": {"tokens_per_s": 150.0}}
    said = summary(found)
    assert said["alone_s"] == {"generate": 3.0, "train": 1.0} and said["in_flight_s"] == 2.0
    table(found, {"staleness 1": 3.0})


def test_the_table_of_a_stopped_run_shows_both_limits_and_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from loop_limit import figures_of, table

    rows = [step(100.0 + 4 * number, 4.0, train_s=1.0, busy_s=3.0 * number, tokens=300.0 * number) for number in (1, 2)]
    rows[1]["mismatch/engine_kl"] = 0.00012
    rows[0]["train/gpu_peak_gib"], rows[1]["train/gpu_peak_gib"] = 90.0, 70.0
    one = figures_of(write_run(tmp_path / "run", rows), slice(1, 2))
    assert one["train/gpu_peak_gib"] == 70.0
    later = one | {"time/step_s": 3.3, "mean_s": 3.2}
    found = {"staleness 0": one, "staleness 1": later, "always in flight": {"tokens_per_s": 150.0}}
    table(found, {"staleness 1": 3.0})
    last = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert last[1] == "3.30" and last[3:8] == ["3.00", "-6%", "1.10", "1.65", "1.21"]
    assert last[-2:] == ["0.00012", "- |"]
    table({"staleness 1": {name: value for name, value in one.items() if name != "mismatch/engine_kl"}}, {})
    alone = capsys.readouterr().out.splitlines()[-1]
    assert alone.endswith("| - | - |") and " - | - | - | - | - | 75% " in alone
    table({}, {})


def test_real_weights_are_measured_at_the_end_and_random_ones_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from loop_limit import main

    monkeypatch.setattr(sys, "argv", ["loop_limit.py", "--eval", "--random", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "leave out one of them" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["TailedVllm", "FullVllm", "TailedNative", "FullNative"])
def test_random_weights_with_each_engine_are_a_recipe(engine: str, tmp_path: Path) -> None:
    from loop_limit import random_fields
    from qwen3_folder import write_folder  # type: ignore[import-not-found]

    write_folder("Qwen/Qwen3-1.7B", tmp_path)
    recipe = finished([BENCHMARKS.parent / "apps" / "grpo" / "qwen3_1.7b.yaml"], random_fields(tmp_path, 64, engine))
    assert type(recipe.generator.engine).__name__ == engine and recipe.rollout.max_turn_tokens == 64


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Of trl_rate.py, as its docstring shows it for one GPU."""
    from qwen3_folder import write_folder
    from trl_rate import parsed  # type: ignore[import-not-found]

    write_folder("Qwen/Qwen3-1.7B", tmp_path / "model")
    recipes = [str(BENCHMARKS.parent / "apps" / name) for name in ("grpo/qwen3_1.7b.yaml", "presets/gpus/one.yaml")]
    words = ["trl_rate.py", *recipes, "--random", str(tmp_path / "model"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", words)
    return parsed()


def test_a_tailed_length_follows_from_the_seed_and_without_one_it_is_what_was_asked_for() -> None:
    from tailed_engine import shortened  # type: ignore[import-not-found]

    from agentgym.types import GenerateRequest, SamplingParams

    def length(seed: int | None) -> int:
        sampling = SamplingParams(max_tokens=1000, seed=seed)
        return int(shortened(GenerateRequest(prompt_ids=(1,), sampling=sampling)).sampling.max_tokens)

    lengths = [length(seed) for seed in range(500)]
    assert lengths == [length(seed) for seed in range(500)] and min(lengths) < 50 and max(lengths) == 1000
    assert 100 < sorted(lengths)[250] < 160 and {length(None) for _ in range(20)} == {1000}


def test_each_of_our_arms_against_trl_is_a_recipe_whose_rows_hold_many_samples(arguments: Any) -> None:
    from trl_rate import OURS, our_fields, runs_of

    assert runs_of(OURS) == [["ours, synchronous", "ours"], ["ours, sleeping"]]
    for name in OURS:
        recipe = finished([*map(Path, arguments.recipes)], our_fields(arguments, [name]))
        assert recipe.trainer.seq_len >= 8 * recipe.rollout.max_episode_tokens - 512
        assert recipe.generator.max_model_len == recipe.rollout.max_episode_tokens
        assert recipe.generator.engine.sleeps == (name == "ours, sleeping")


def test_completions_of_another_length_are_no_arm() -> None:
    from finished_arms import ArmFailed  # type: ignore[import-not-found]
    from trl_rate import check_lengths

    check_lengths([16.0, 16.0], 16)
    for means in ([16.0, 15.5], []):
        with pytest.raises(ArmFailed, match="not 16"):
            check_lengths(means, 16)


def test_a_rate_is_of_the_median_and_shares_are_by_the_fastest_of_trl(
    arguments: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from trl_rate import table

    first = [60.0] * arguments.skip
    table(arguments, {"ours": {"steps_s": [*first, 2.0, 2.0, 9.0]}, "TRL": {"steps_s": [*first, 8.0, 8.0]},
                      "TRL, lean": {"steps_s": [*first, 4.0, 4.0]}})  # fmt: skip
    ours = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("| ours"))
    assert ours == "| ours | 2.00 | 9.00 | 65,536 | 30,247 | 2.00 |"


def test_each_round_of_generation_prefills_new_prompts_of_the_same_lengths() -> None:
    import argparse

    from generation_rate import LOADS, TURNS, conversations_of  # type: ignore[import-not-found]

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
    from generation_rate import converse

    from agentgym.types import GenerateRequest, SamplingParams

    asked: list[tuple[tuple[int, ...], bool]] = []

    async def generate(request: GenerateRequest) -> list[int]:
        asked.append((request.prompt_ids, request.continues))
        return [100 + len(asked)] * 2

    sampling = SamplingParams(max_tokens=2)
    turns = [GenerateRequest(prompt_ids=(n, n), sampling=sampling, continues=n > 1) for n in (1, 2, 3)]
    assert await converse(generate, turns) == 6
    first, second = (1, 1), (1, 1, 101, 101, 2, 2)
    assert asked == [(first, False), (second, True), ((*second, 102, 102, 3, 3), True)]


def test_only_steps_in_which_some_join_others_are_slowed_down(monkeypatch: pytest.MonkeyPatch) -> None:
    import slow_joins  # type: ignore[import-not-found]

    slept: list[float] = []
    monkeypatch.setattr(slow_joins.time, "sleep", slept.append)

    class Runner:
        def execute_model(self, scheduled: Any, *more: Any) -> tuple[Any, ...]:
            return (scheduled, *more)

    slow_joins._slow_down(Runner, 0.25)
    for new, others, expected in (([], 3, 0), ([1], 0, 0), ([1, 2], 3, 1)):
        slept.clear()
        scheduled = SimpleNamespace(scheduled_new_reqs=new, scheduled_cached_reqs=SimpleNamespace(num_reqs=others))
        assert Runner().execute_model(scheduled, "more") == (scheduled, "more")
        assert slept == [0.25] * expected


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.filterwarnings("ignore")  # vllm's own
def test_vllm_alone_is_asked_for_what_our_engine_asks_it_for() -> None:
    import argparse

    from generation_rate import conversations_of, raw_sampling

    from agentgym.generators.vllm.settings import sampling_params

    [[request]] = conversations_of(argparse.Namespace(requests=1, prompt=4, tokens=64), "equal", 1)
    assert repr(raw_sampling(request)) == repr(sampling_params(request.sampling))


@pytest.mark.slow
def test_weights_are_drawn_for_a_recipe_that_fits_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import plan_accuracy  # type: ignore[import-not-found]
    from qwen3_folder import has_weights

    from agentgym.planning.machine import Gpu, Machine

    for gpus, memory_gib in ((1, 2.0), (1, 139.0)):
        machine = Machine(gpus=(Gpu(name="a GPU", memory_gib=memory_gib),) * gpus)
        monkeypatch.setattr(plan_accuracy, "this_machine", lambda machine=machine: machine)
        ((name, recipe),) = plan_accuracy.gpu_recipes(["smollm2_135m"], [], 14, 64, tmp_path)
        fits = memory_gib > 100
        assert (name, recipe.model.random_weights) == ("smollm2_135m", not fits)
        assert has_weights(tmp_path / name) == fits


def test_set_ups_on_a_cpu_can_be_chosen_by_how_their_names_begin() -> None:
    from plan_accuracy import CPU_SETUPS, cpu_recipes

    assert [name for name, _ in cpu_recipes([], 14)] == list(CPU_SETUPS)
    [(name, recipe)] = cpu_recipes(["tool"], 14)
    assert name == "tool_use, asynchronous, 1 replica" and recipe.env.name == "tool_use"


def test_a_plan_is_compared_with_the_median_and_a_gpu_that_took_nothing_is_an_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from plan_accuracy import table  # type: ignore[import-not-found]

    row = {"predicted_s": 1.0, "measured_s": 1.1, "estimated_gib": [50.0, 90.0], "taken_gib": [48.0, 91.0]}
    assert table({"one": row})
    assert "| one | 1.00 | 1.10 | -9% | 50.0/48.0, 90.0/91.0 |" in capsys.readouterr().out
    for wrong in ({"measured_s": 1.3}, {"taken_gib": [48.0, 50.0]}, {"taken_gib": [48.0, 0.0]}):
        assert not table({"one": row, "two": row | wrong})
    assert not table({})


def test_a_part_over_its_time_leaves_what_it_said_and_no_process(tmp_path: Path) -> None:
    from many_gpus import Part, measure  # type: ignore[import-not-found]

    def part(name: str, script: str) -> Any:
        return Part(name=name, limit_s=3.0, command=["sh", "-c", script], read=lambda text, _: [("said", text, "")])

    rows = measure(part("hangs", "echo begun; setsid sleep 600 & echo $!; wait"), tmp_path)
    assert rows == [("not finished", "after 3 s, see hangs.partial", "")]
    begun, pid = (tmp_path / "hangs.partial").read_text().split()
    assert begun == "begun" and not Path(f"/proc/{pid}").exists()
    assert "exit code 3" in measure(part("fails", "echo why >&2; exit 3"), tmp_path)[0][1]
    assert (tmp_path / "fails.failed").read_text() == "why\n"
    ends = part("ends", f"echo x >> {tmp_path}/count; echo done")
    assert measure(ends, tmp_path) == measure(ends, tmp_path) == [("said", "done\n", "")]
    assert (tmp_path / "count").read_text() == "x\n"


def test_each_number_of_gpus_has_all_parts_of_many_gpus(tmp_path: Path) -> None:
    from many_gpus import Size, parts

    for tiny in (False, True):
        for gpus in (2, 4, 8):
            found = list(parts(Size(gpus=gpus, tokens=64, steps=14, tiny=tiny, models_dir=tmp_path), tmp_path))
            assert {part.name.split("-")[0] for part in found} == {"plan", "loop", "trainer", "weights", "drill"}


def test_weights_that_parts_need_and_that_are_not_there_are_drawn_first(tmp_path: Path) -> None:
    from many_gpus import Size, missing, parts
    from qwen3_folder import write_folder

    size = Size(gpus=4, tokens=64, steps=14, tiny=False, models_dir=tmp_path / "models")
    every = list(parts(size, tmp_path))
    said = tmp_path / "draw-8B.txt"
    said.write_text("of a folder that was removed since")
    assert [part.name for part in missing(size, every, tmp_path)] == ["draw-1.7B", "draw-8B"]
    assert not said.exists()
    write_folder("Qwen/Qwen3-0.6B", size.folder("8B"), tiny=True, weights=True)
    assert [part.name for part in missing(size, every, tmp_path)] == ["draw-1.7B"]
    of_8b = [part for part in every if "8B" in part.name]
    assert of_8b and list(missing(size, of_8b, tmp_path)) == []


def test_medians_leave_out_the_steps_that_compile_and_are_empty_before_one_counts() -> None:
    from trainer_rate import medians_of  # type: ignore[import-not-found]

    rows = [{"step_s": seconds} for seconds in (60.0, 20.0, 1.0, 9.0, 2.0)]
    assert medians_of(rows, 2) == {"step_s": 2.0}
    assert medians_of(rows[:2], 2) == {}


@pytest.mark.hostile
def test_the_limit_of_the_loop_is_measured_in_one_run_beside_what_is_planned(tmp_path: Path) -> None:
    from qwen3_folder import write_folder

    write_folder("Qwen/Qwen3-0.6B", tmp_path / "model", tiny=True, weights=True)
    given = "decode: [[1, 100], [8, 800]]\nprefill: 1000\ntrain: 1000\nturns: [[[10, 10]]]\n"
    (tmp_path / "rates.yaml").write_text(given)
    fields = ["trainer.device=cpu", "generator.device=cpu", "trainer.check_memory=false", "generator.max_batch=8"]
    fields += ["loop.groups_per_step=2", "loop.group_size=4", "weights.store={name: shared_memory}"]
    words = [str(BENCHMARKS.parent / "apps" / "grpo" / "qwen3_1.7b.yaml"), "--random", str(tmp_path / "model")]
    words += ["--engine", "FullNative", "--tokens", "10", "--prompt-tokens", "80"]
    words += ["--steps", "3", "--skip", "1", "--settle", "1", "--staleness", "1"]
    words += ["--rates", str(tmp_path / "rates.yaml"), "--out", str(tmp_path / "out.jsonl")]
    words += [word for field in fields for word in ("--set", field)]
    command = [sys.executable, str(BENCHMARKS / "loop_limit.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = {row["arm"]: row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert {name: len(row["steps_s"]) for name, row in rows.items()} == {
        "staleness 0": 3, "staleness 1": 6, "always in flight": 9}  # fmt: skip
    stale = [rows[name]["loop/staleness_mean"] for name in ("staleness 0", "staleness 1")]
    assert stale == [0.0, 1.0] and rows["always in flight"]["time/train_s"] == 0.0
    assert all(row["rollout/completion_tokens_mean"] == 10 for row in rows.values())
    # 8 episodes of 80 and 10 tokens: 0.08 s of prompts and 0.1 s of sampling at least, then 0.72 s of training
    planned = [float(line.split(" | ")[3]) for line in done.stdout.splitlines() if line[:3] in ("| 0", "| 1")]
    assert planned[0] == pytest.approx(0.72 + 0.1 + 0.16, abs=0.09) and planned[1] == pytest.approx(0.72, abs=0.03)
    without = [word for word in command if word not in ("--rates", str(tmp_path / "rates.yaml"))]
    again = subprocess.run(without, capture_output=True, text=True, check=True)  # its runs are kept
    assert [line.split(" | ")[3] for line in again.stdout.splitlines() if line[:3] in ("| 0", "| 1")] == ["-", "-"]


@pytest.mark.hostile
def test_adapters_publish_fewer_bytes_than_all_weights(tmp_path: Path) -> None:
    from many_gpus import weight_rows
    from qwen3_folder import write_folder

    write_folder("Qwen/Qwen3-0.6B", tmp_path / "model", tiny=True)
    script, sizes = str(BENCHMARKS / "weight_sync.py"), []
    for rank in ("0", "4"):
        words = ["--device", "cpu", "--rounds", "1", "--requests", "2", "--tokens", "16", "--lora-rank", rank]
        done = subprocess.run(
            [sys.executable, script, str(tmp_path / "model"), *words], capture_output=True, text=True, check=True
        )
        sizes.append(json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))["gb"])
        figures = {figure: measured for figure, measured, _ in weight_rows(done.stdout, tmp_path)}
        assert f" s for {sizes[-1]:.2f} GB" in figures["load"]
        assert {"push", "requests pause", "in host memory", "fresh samples from the trainer"} < set(figures)
    assert 0 < sizes[1] < sizes[0] / 2


async def test_the_distance_of_samples_is_that_from_the_weights_that_made_them(tmp_path: Path) -> None:
    from plain_model import make_model
    from sampled_logprobs import distances  # type: ignore[import-not-found]

    from agentgym.generators.config import GeneratorConfig
    from agentgym.generators.select import NativeEngineConfig
    from agentgym.types import GenerateRequest, SamplingParams

    own, other = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
    engine = NativeEngineConfig().build(GeneratorConfig(device="cpu", max_model_len=64), str(own.folder))
    requests = [GenerateRequest(prompt_ids=(3, 4, n), sampling=SamplingParams(max_tokens=n, seed=n)) for n in (5, 9)]
    await engine.start()
    try:
        completions = [await engine.generate(request) for request in requests]
    finally:
        await engine.close()
    own_nats, other_nats = ([*distances(model.folder, "cpu", requests, completions)] for model in (own, other))
    assert [len(one) for one in own_nats] == [len(one.completion_ids) for one in completions]
    assert max(float(one.max()) for one in own_nats) < 1e-3 < 1 < max(float(one.max()) for one in other_nats)
