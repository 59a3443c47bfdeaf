"""The script that compares losses: what it pairs, what it leaves alone, and what it does when a run fails."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentgym.components import SEAMS
from agentgym.config import apply_overrides
from agentgym.evals.statistics import paired_difference
from agentgym.jobs.layers import finish_recipe
from agentgym.rl.loop import StepRecord
from agentgym.types import Episode, Group, Task
from benchmarks.algorithms import ARMS, DEFAULT, FIXED, Count, Row, Run, main, measure, read, table

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


def test_a_difference_is_paired_by_task_over_the_seeds_that_both_have() -> None:
    runs = [dataclasses.replace(SMALL, arm=arm, seed=seed) for arm in ("grpo", "gspo") for seed in (0, 1)]
    rows = [row(runs[0], "11", "10", "00"), row(runs[1], "01", "1-", "00"), row(runs[2], "11", "11", "00")]
    wanted = paired_difference([[1, 1], [1, 0], [0, 0]], [[1, 1], [1, 1], [0, 0]], shares=True)
    [line] = [line for line in table(runs, rows).splitlines() if line.startswith("| `gspo`")]
    shown = f"{wanted.mean:+.3f} [{wanted.low:+.3f}, {wanted.high:+.3f}], not told apart"
    assert line == f"| `gspo` | 0 | 0.500 | 0.667 | {shown} | +0.167 |"
    both = [*rows, row(runs[3], "11", "11", "00")]
    [line] = [line for line in table(runs, both).splitlines() if line.startswith("| `gspo`")]
    wanted = paired_difference([[0.75], [2 / 3], [0]], [[1], [1], [0]], shares=True)
    assert f"{wanted.mean:+.3f} [{wanted.low:+.3f}, {wanted.high:+.3f}]" in line and line.endswith("+0.167, +0.267 |")


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
    assert "Not run: `gspo`." in table(runs, read(out))
    longer = dataclasses.replace(runs[0], steps=3)
    assert measure([*runs, longer], out, 1, play) == []
    assert sorted(played) == ["cispo", "grpo", "grpo", "gspo", "gspo"], "another number of steps is another run"
    assert len([json.loads(line) for line in out.read_text().splitlines()]) == 4


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    out, page = tmp_path / "rows.jsonl", tmp_path / "page.md"
    out.write_text(json.dumps(row(SMALL, "11", "10", "00")) + "\n")
    page.write_text("before\n<!-- fair -->\nold\n<!-- /fair -->\nafter\n")
    size = ["--env", "math", "--steps", "2", "--groups", "2", "--tasks", "3"]
    assert main([*size, "--jobs", "0", "--only", "grpo", "--out", str(out), "--write", str(page)]) == 0
    written = page.read_text()
    assert written.startswith("before\n<!-- fair -->\n**`math`, synchronous**: a budget of 32 sampled")
    assert "| `grpo` | 0 | 0.500 | 0.500 |" in written and "old" not in written
    assert written.endswith("<!-- /fair -->\nafter\n")


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
