"""The benchmarks that run on GPUs alone: their settings are valid, and their figures are those of what ran."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

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
    synchronous = figures_of(write_run(tmp_path / "run", rows, replicas=2), skip=1)
    assert (synchronous["time/step_s"], synchronous["time/generate_s"], synchronous["time/train_s"]) == (4.0, 3.0, 1.0)
    assert synchronous["mean_s"] == 6.0 and synchronous["steps_s"] == [9.0, 4.0, 4.0, 14.0, 4.0, 4.0]
    assert synchronous["generators_busy"] == pytest.approx(0.5)  # 30 s of two replicas in 30 s
    assert synchronous["trainer_busy"] == pytest.approx(0.5)
    assert synchronous["tokens"] == 300
    asynchronous = synchronous | {"time/step_s": 3.3}
    found = {"staleness 0": synchronous, "staleness 1": asynchronous, "always in flight": {"tokens_per_s": 150.0}}
    said = summary(found)
    assert said["alone_s"] == {"generate": 3.0, "train": 1.0} and said["in_flight_s"] == 2.0
    table(found)


def test_the_table_of_a_stopped_run_shows_both_limits_and_what_is_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from loop_limit import figures_of, table

    rows = [step(100.0 + 4 * number, 4.0, train_s=1.0, busy_s=3.0 * number, tokens=300.0 * number) for number in (1, 2)]
    one = figures_of(write_run(tmp_path / "run", rows), skip=1)
    table({"staleness 0": one, "staleness 1": one | {"time/step_s": 3.3}, "always in flight": {"tokens_per_s": 150.0}})
    last = capsys.readouterr().out.splitlines()[-1].split(" | ")
    assert last[1] == "3.30" and last[3:6] == ["1.10", "1.65", "1.21"]
    table({"staleness 1": one})
    assert " - | - | - | 75% " in capsys.readouterr().out
    table({})


def test_real_weights_are_measured_at_the_end_and_random_ones_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from loop_limit import main

    monkeypatch.setattr(sys, "argv", ["loop_limit.py", "--eval", "--random", str(tmp_path)])
    with pytest.raises(SystemExit):
        main()
    assert "leave out one of them" in capsys.readouterr().err


def finished(recipes: list[Path], fields: list[str]) -> Any:
    from agentgym.config import apply_overrides
    from agentgym.jobs.layers import finish_recipe
    from agentgym.jobs.recipe_files import read_recipe_files

    mapping, where = read_recipe_files(recipes)
    return finish_recipe(apply_overrides(mapping, fields), where=where)[0]


@pytest.mark.parametrize("engine", ["TailedVllm", "FullVllm", "TailedNative", "FullNative"])
def test_random_weights_with_each_engine_are_a_recipe(engine: str, tmp_path: Path) -> None:
    from loop_limit import random_fields
    from qwen3_folder import write_folder  # type: ignore[import-not-found]

    write_folder("Qwen/Qwen3-1.7B", tmp_path)
    recipe = finished([BENCHMARKS.parent / "apps" / "grpo" / "qwen3_1.7b.yaml"], random_fields(tmp_path, 64, engine))
    assert type(recipe.generator.engine).__name__ == engine and recipe.rollout.max_turn_tokens == 64
