"""The script that compares losses: what it pairs, what it leaves alone, and what it does when a run fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from pages import ROOT

from agentgym.components import SEAMS
from agentgym.config import apply_overrides
from agentgym.evals.statistics import run_difference
from agentgym.loops.async_rl import StepRecord
from agentgym.run.layers import finish_recipe
from agentgym.types import Episode, Group, Task
from benchmarks.algorithms import ARMS, DEFAULT, FIXED, SAME, Count, Row, Run, main, measure, read, summarize, table

TASK = Task(task_id="t", prompt=())
SMALL = Run(env="math", stale=0, arm=DEFAULT, seed=0, steps=2, groups=2, minibatches=1, tasks=3)


def row(run: Run, *after: str) -> Row:
    figures = {"before": 0.5, "after": [*after], "episodes": 32, "done": 2, "wall_s": 1.0, "machine": "a machine"}
    return {**dataclasses.asdict(run), **figures}


def test_every_loss_of_reinforcement_learning_is_an_arm_and_each_builds() -> None:
    assert set(SEAMS["losses"].builtin) - {"module", "cross_entropy"} <= ARMS.keys()
    for name, words in ARMS.items():
        finish_recipe(apply_overrides({}, [*FIXED, *words]))
        assert words[0].endswith(f".name={name}")
    assert finish_recipe(apply_overrides({}, ARMS[DEFAULT]))[0] == finish_recipe({})[0], "the default is the default"


def test_a_run_is_the_unit_and_all_rows_are_corrected_together() -> None:
    plays = {  # of four tasks, each played twice, for each seed
        "grpo": ["0000"] * 3,
        "gspo": ["1111", "1110", "1111"],
        "opo": ["0100", "0110", "0110"],
        "cispo": ["0000", "1000", "1100"],
    }
    runs = [dataclasses.replace(SMALL, arm=arm, seed=seed, tasks=4) for arm in plays for seed in range(3)]
    rows = [row(run, *(one * 2 for one in plays[run.arm][run.seed])) for run in runs]
    lines = table(summarize(runs, rows)).splitlines()
    assert lines[0].startswith("Of 3 differences 2 have an interval without zero,")
    assert "after the correction for 3 tests (Holm) 1 are told apart" in lines[0]
    for arm, tests, said in (("gspo", 3, "better"), ("opo", 2, "not told apart"), ("cispo", 1, "not told apart")):
        moves = [one.count("1") / 4 for one in plays[arm]]
        found = run_difference(moves, resolution=1 / 8)
        cells = [
            f"| `{arm}` | 0, 1, 2 | 0.500 | {found.mean:.3f} ",
            f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], {said} ",
            f"{found.chance:.2g}, corrected {tests * found.chance:.2g} ",
            f"{', '.join(f'{one:+.3f}' for one in moves)} |",
        ]
        assert "| ".join(cells) in lines
    [line] = [one for one in table(summarize(runs[:6:3], rows)).splitlines() if one.startswith("| `gspo`")]
    assert line.endswith("| one run |  | +1.000 |")


def test_the_noise_floor_is_one_algorithm_against_itself() -> None:
    runs = [dataclasses.replace(SMALL, arm=arm, seed=seed) for arm in ("grpo", *SAME) for seed in (0, 1)]
    after = {"grpo": "000", "rloo": "110", "mean_only": "100"}
    text = table(summarize(runs, [row(run, *(one * 2 for one in after[run.arm])) for run in runs]))
    [line] = [line for line in text.splitlines() if "noise floor" in line]
    assert line.startswith("| noise floor: `rloo` minus `mean_only` | 0, 1 |  |  | +0.333 [")
    assert "differ by up to 0.333 between runs with the same seed" in text


def test_the_recorded_differences_are_shares_of_the_episodes_played() -> None:
    records = json.loads((ROOT / "benchmarks" / "measured" / "algorithms.json").read_text())
    assert [len(record["arms"]) for record in records] == [len(ARMS)] * 6
    for record in records:
        by_arm = {one["arm"]: one for one in record["arms"]}
        for one in by_arm.values():
            moves = [*one["minus"].values()]
            assert all((move * record["plays"]).is_integer() for move in moves)
            if moves:
                assert sum(moves) / 3 == pytest.approx(one["after"] - by_arm[DEFAULT]["after"], abs=1.1e-3)


def test_a_run_that_fails_is_reported_and_the_others_are_kept_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    played = []

    def play(run: Run, cores: Sequence[int]) -> Row:
        played.append(run.arm)
        assert cores
        if run.arm == "gspo" and played.count("gspo") == 1:
            raise RuntimeError("the loss is not finite")
        return row(run, "11", "10", "00")

    out = tmp_path / "new" / "rows.jsonl"
    runs = [dataclasses.replace(SMALL, arm=arm) for arm in ("grpo", "gspo", "cispo")]
    assert measure(runs, out, 2, play) == [runs[1]]
    assert "gspo, seed 0: FAILED: the loss is not finite" in capsys.readouterr().err
    assert "Not run: `gspo`." in table(summarize(runs, read(out)))
    longer = dataclasses.replace(runs[0], steps=3)
    assert measure([*runs, longer], out, 1, play) == []
    assert sorted(played) == ["cispo", "grpo", "grpo", "gspo", "gspo"], "another number of steps is another run"
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 4


def test_finished_runs_make_a_table_without_another_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text(json.dumps(row(SMALL, "11", "10", "00")) + "\n")
    size = ["--env", "math", "--steps", "2", "--groups", "2", "--tasks", "3"]
    assert main([*size, "--jobs", "0", "--only", "grpo", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("**`math`, synchronous**: a budget of 32 sampled")
    assert "| `grpo` | 0 | 0.500 | 0.500 |" in printed


async def test_a_loop_ends_with_the_step_that_reaches_the_budget_skipped_groups_included() -> None:
    class Loop:
        stopping = False

        async def after_step(self, record: StepRecord) -> None:
            self.stopping = False  # as the job's own does

    def group(count: int) -> Group:
        episodes = [Episode(episode_id=str(n), task=TASK, seed=0) for n in range(count)]
        return Group(group_id=0, task=TASK, start_version=0, episodes=episodes)

    loop, count = Loop(), Count(budget=20)
    count.watch(loop)  # type: ignore[arg-type]
    ends = []
    for step in (1, 2):
        await loop.after_step(
            StepRecord(step=step, groups=[group(8)], skipped=[group(4)], staleness=[step], next_group=2, metrics={})
        )
        ends.append(loop.stopping)
    assert ends == [False, True] and (count.episodes, count.staleness) == (24, 2)
