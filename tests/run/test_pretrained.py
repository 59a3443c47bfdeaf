"""benchmarks/pretrained.py: its arms are recipes, begin from the right checkpoint, end in time, and give a picture."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finishing import finished


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")


def test_the_arms_of_a_pretrained_model_on_two_gpus_are_recipes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pretrained  # type: ignore[import-not-found]

    seen: list[Any] = []
    monkeypatch.setattr(pretrained, "train", seen.append)
    words = ["train", "--gpus", "0", "1", "--engine", "vllm", "--per-run", "2", "--seeds", "0", "4"]
    words += ["--controls", "coin", "synchronous", "--other-staleness", "3"]
    monkeypatch.setattr(sys, "argv", ["pretrained.py", *words, "--runs-dir", str(tmp_path)])
    pretrained.main()
    arms = pretrained.arms_of(seen[0], Path("builtin:tiny"))
    assert [arm.name for arm in arms] == ["seed 0", "seed 4", "coin", "synchronous", "staleness 3"]
    stale = {"synchronous": 0, "staleness 3": 3}
    for arm in arms:
        fields = [word for flag, word in pairwise(arm.words) if flag == "--set"]
        recipe = finished([Path(word) for word in arm.words[1:] if word.endswith(".yaml")], fields)
        assert recipe.loop.max_staleness == stale.get(arm.name, 1)
        assert recipe.generator.engine.gpu_memory_utilization == 0.85, "that of a GPU that a generator has alone"
    assert f"{tmp_path}/coin.py:coin" in arms[2].words


def test_code_exec_has_its_own_fields_and_one_control_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import pretrained

    seen: list[Any] = []
    monkeypatch.setattr(pretrained, "train", seen.append)
    words = ["pretrained.py", "train", "--task", "code_exec", "--runs-dir", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", words)
    pretrained.main()
    arms = pretrained.arms_of(seen[0], Path("builtin:tiny"))
    assert [arm.name for arm in arms] == ["seed 0", "seed 1", "seed 2", "coin"]
    fields = [word for flag, word in pairwise(arms[0].words) if flag == "--set"]
    recipe = finished([Path(word) for word in arms[0].words[1:] if word.endswith(".yaml")], fields)
    assert recipe.env.name == "code_exec" and recipe.env.options["max_difficulty"] == 2
    assert "```python" in str(recipe.env.options["instruction"]) and recipe.rollout.max_turn_tokens == 160
    monkeypatch.setattr(sys, "argv", [*words, "--controls", "withheld"])
    with pytest.raises(SystemExit):
        pretrained.main()
    assert "only tool_use has them" in capsys.readouterr().err


def test_the_curve_has_the_runs_that_took_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pretrained
    from success_curve import draw_success, running_means  # type: ignore[import-not-found]

    drawn: list[Any] = []

    def draw(runs: Any, file: Path, *, smooth: int) -> None:
        drawn.append(runs)
        draw_success(runs, file, smooth=smooth)

    monkeypatch.setattr(pretrained, "draw_success", draw)
    picture = tmp_path / "curve.png"
    monkeypatch.setattr(sys, "argv", ["pretrained.py", "curve", "--runs-dir", str(tmp_path), "--picture", str(picture)])
    with pytest.raises(SystemExit, match=r"no run with steps: run `pretrained\.py train` first"):
        pretrained.main()
    rows = {"seed-0": [{"rollout/success_mean": 0.25}, {"eval/success": 0.5}, {"rollout/success_mean": 0.75}]}
    rows["warm-22"] = [{"loss": 1.0}]
    for name, lines in rows.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    pretrained.main()
    assert drawn == [{"seed 0": [0.25, 0.75]}] and picture.read_bytes().startswith(b"\x89PNG")
    assert running_means([1.0, 2.0, 3.0, 4.0], 2) == [1.0, 1.5, 2.5, 3.5]


def test_arms_start_from_the_warm_start_that_solves_about_as_much_as_is_asked_for_or_from_the_only_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from pretrained import chosen_policy

    arguments: Any = SimpleNamespace(runs_dir=tmp_path, near=0.4)
    with pytest.raises(SystemExit, match="has no measured warm start: run"):
        chosen_policy(arguments)
    for steps in (12, 22):
        (tmp_path / f"warm-{steps}" / "checkpoints" / "step-000000").mkdir(parents=True)
        if steps == 12:
            with pytest.raises(SystemExit, match="no measured warm start"):  # it was stopped
                chosen_policy(arguments)
        (tmp_path / f"warm-{steps}" / "checkpoints" / f"step-{steps:06d}").mkdir()
        if steps == 12:
            assert chosen_policy(arguments).name == "step-000012"
            assert "warm-12, which was not measured" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no measured warm start"):
        chosen_policy(arguments)
    for steps, success in ((12, 0.1), (22, 0.5)):
        (tmp_path / f"warm-{steps}" / "comparison.json").write_text(json.dumps({"last": {"success": success}}))
    assert chosen_policy(arguments) == tmp_path / "warm-22" / "checkpoints" / "step-000022"


def test_an_arm_that_has_had_its_time_is_measured_and_the_next_one_begins(tmp_path: Path) -> None:
    from pretrained import Arm, supervise

    begun: list[tuple[str, tuple[int, ...]]] = []
    processes: list[subprocess.Popen[bytes]] = []

    def shell(script: str) -> subprocess.Popen[bytes]:
        processes.append(subprocess.Popen(["sh", "-c", script], start_new_session=True))
        return processes[-1]

    def begin(arm: Any, gpus: tuple[int, ...]) -> subprocess.Popen[bytes]:
        assert all(process.poll() is not None for process in processes), "one at a time"
        begun.append((arm.name, gpus))
        return shell(arm.words[0])

    def again(arm: Any, gpus: tuple[int, ...]) -> subprocess.Popen[bytes]:
        begun.append((f"{arm.name} measured", gpus))
        return shell("exit 0")

    scripts = {"short": "exit 0", "long": "trap 'exit 0' TERM; while :; do sleep 0.1; done", "wrong": "exit 3"}
    arms = [Arm(name=name, words=[script]) for name, script in scripts.items()]
    supervise(arms, [(0, 1)], 1, 2.0, begin, again)
    assert begun == [(name, (0, 1)) for name in ("short", "long", "long measured", "wrong")]
