"""What `agentgym status` says first of ten recorded runs: the usual ways to fail, and a healthy one."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from view_runs import episode

from agentgym.evals.play import EvalResult, EvalSetup
from agentgym.evals.statistics import success_interval
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.heartbeat import process_space
from agentgym.types import Outcome

RECORDED = json.loads((Path(__file__).parent.parent / "data" / "diagnosed_runs.json").read_text())
Metrics = dict[str, float]


def rows_of(name: str) -> list[Metrics]:
    """Of a real run of the shipped policy; see tests/evals/test_diagnosis.py."""
    columns = RECORDED[name]["metrics"]
    return [
        {key: value for key, value in zip(columns, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]


def changed(rows: Sequence[Metrics], change: Callable[[int, Metrics], Mapping[str, float]]) -> list[Metrics]:
    return [{**row, **change(number, row)} for number, row in enumerate(rows)]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """evaluations: by step, a digit for each episode; `-` was cut by time. says: how the answer begins; advice: what is
    in it, too. never: what must not be in it."""

    says: str
    advice: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    rows: Sequence[Metrics] = ()
    evaluations: Mapping[int, str] = field(default_factory=dict)
    config: Mapping[str, object] = field(default_factory=dict)
    status: RunStatus = RunStatus.DONE
    reason: str = ""


LEARNING = {one["step"]: one["success"] for one in RECORDED["learning"]["evaluations"]}
NEVER = {"rollout/success_mean": 0.0, "rollout/reward_mean": 0.05, "loop/skipped_groups": 40.0,
         "loop/skipped_right": 0.0, "loop/skipped_wrong": 40.0, "loop/staleness_mean": 6.0}  # fmt: skip
RUNS = {
    "healthy": Recorded(
        says="Learning: held-out success went from 0.422 to 0.883, +0.461 [+0.329, +0.565]",
        never=("Look first", "But:"),
        rows=rows_of("learning"),
        evaluations=LEARNING,
    ),
    "never succeeds": Recorded(
        says="Nothing has succeeded: none of the",
        advice=("Choose easier tasks, or fine-tune on solved examples first: agentgym sft", "--oracle"),
        never=("versions old", "Lower loop.max_staleness", "have no signal"),
        rows=changed(rows_of("stale"), lambda number, row: NEVER),
        evaluations={0: "0" * 128, 38: "0" * 128},
    ),
    "collapses": Recorded(
        says="Unlearning: held-out success went from 0.422 to 0.125",
        advice=("Look first at this: the policy's entropy went from 0.7", "to 0.00", "Lower optimizer.lr"),
        rows=changed(
            rows_of("learning"),
            lambda number, row: {
                "train/entropy": 0.7 if number < 8 else 0.001,
                "rollout/success_mean": 0.4 if number < 8 else 0.15,
                "rollout/reward_mean": 0.4 if number < 8 else 0.15,
                "loop/skipped_groups": 0.0 if number < 8 else 60.0,
            },
        ),
        evaluations={0: LEARNING[0], 20: "1" * 16 + "0" * 112},
    ),
    "reward hacked": Recorded(
        says="Unlearning: held-out success went from 0.422 to 0.164",
        advice=("Look first at this: success in training fell by 0.36 while the reward went -0.01",),
        rows=rows_of("random"),
        evaluations={one["step"]: one["success"] for one in RECORDED["random"]["evaluations"]},
    ),
    "engine cut": Recorded(
        says="The machine was too slow: 128 of 128 held-out episodes after step 20 were cut by rollout.generate",
        advice=("--rollout.generate_timeout_s 240",),
        rows=changed(rows_of("learning"), lambda number, row: {"rollout/time_cut_share": 0.9}),
        evaluations={0: LEARNING[0], 20: "-" * 128},
    ),
    "nothing left": Recorded(
        says="Nothing is left to learn: every episode of the last 3 groups succeeded. Choose harder tasks",
        never=("Too early",),
        rows=rows_of("learning")[:3],
        reason="nothing is left to learn: every episode of the last 3 groups succeeded. Choose harder tasks, or "
        "another environment. The mean reward is 1.000",
    ),
    "diverges": Recorded(
        says="Diverged: loss or gradient was not a number in step 13",
        advice=("Lower optimizer.lr", "resume from a checkpoint before"),
        rows=changed(rows_of("learning"), lambda number, row: {"train/loss": math.nan} if number >= 12 else {}),
        evaluations={0: LEARNING[0], 20: "0" * 128},
    ),
    "fine-tuning": Recorded(
        says="Learning: training loss went from",
        never=("entropy", "clip_high"),
        rows=[
            {
                "sft/loss": 1 / step,
                "train/loss": 1 / step,
                "train/grad_norm": 1.0,
                "train/lr": 1e-3,
                "train/entropy": 1.0 if step < 8 else 0.001,
            }
            for step in range(1, 25)
        ],
        config={"sft": {"epochs": 3}},
    ),
    "failed": Recorded(
        says="Failed after step 2: [Errno 28] No space left on device",
        never=("Too early",),
        rows=rows_of("learning")[:2],
        status=RunStatus.FAILED,
        reason="[Errno 28] No space left on device\n: /runs",
    ),
}


def record(runs: Path, one: Recorded) -> RunFolder:
    """The folder is open, and so the run goes on."""
    folder = RunFolder.create(runs, "one")
    folder.save_config(one.config or {"loss": {"name": "grpo"}})
    for step, metrics in enumerate(one.rows, start=1):
        folder.append_metrics(step, metrics)
    for step, success in one.evaluations.items():
        setup = EvalSetup(environment="e", version=1, data_hash="h", num_tasks=len(success) // 2, samples_per_task=2,
                          seed=1, greedy=False)  # fmt: skip
        flat = [None if digit == "-" else digit == "1" for digit in success]
        known = [value for value in flat if value is not None]
        result = EvalResult(
            checkpoint="", success=sum(known) / len(known) if known else None, low=None, high=None, reward_mean=None,
            num_tasks=setup.num_tasks, num_episodes=len(known), num_unsupported=0, num_infra_errors=0,
            num_cut=len(flat) - len(known), cut_by="rollout.generate_timeout_s = 60",
            by_task=tuple(tuple(flat[at : at + 2]) for at in range(0, len(flat), 2)),
        )  # fmt: skip
        files = EvaluationFiles(folder, step)
        files.begin(setup.to_mapping(), resume=False)
        files.save_episodes([])
        files.save_result(setup.to_mapping(), result.to_mapping())
    return folder


def said(cli, path: Path) -> tuple[str, str]:
    """What it says after the line with the name, first the sentences about the run, each a line."""
    end = cli("status", str(path))
    assert end.code == 0, end.err
    head, _, rest = end.out.partition("\n")
    assert head.startswith("one: ")
    return " ".join(rest.split()), end.out


@pytest.mark.parametrize("name", RUNS)
def test_the_first_sentence_about_a_recorded_run_is_the_right_one(cli, name: str) -> None:
    one = RUNS[name]
    with record(Path("runs"), one) as folder:
        folder.set_status(one.status, one.reason)
    text, _ = said(cli, folder.path)
    assert text.startswith(one.says), text
    assert all(words in text for words in one.advice), text
    assert not any(words in text for words in one.never), text


def test_of_a_run_whose_trainer_is_stopped_the_trainer_is_the_first_thing_said(cli) -> None:
    with (
        record(Path("runs"), replace(RUNS["healthy"], rows=rows_of("learning")[:3], evaluations={})) as folder,
        subprocess.Popen(
            [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"], stdout=-1
        ) as process,
    ):
        try:
            assert process.stdout is not None and process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            os.waitpid(process.pid, os.WUNTRACED)
            in_flight = {"train": [1, 72.0], "generate": [4, 71.0]}
            common = {"place": process_space(), "cpu_percent": 1.0, "busy": [], "time": time.time()}
            writer = [{"thread": "Thread-1", "frames": [["_run (writer/event_file_writer.py:269)", 74.0, 74.0]]}]
            beats = {
                "controller": {"pid": os.getpid(), "in_flight": in_flight, "silence_s": 71.0, "loop": "MainThread",
                               "loop_silence_s": 0.0, "busy": writer},
                "trainer": {"pid": process.pid, "time": time.time() - 72},
            }  # fmt: skip
            (folder.path / "logs").mkdir()
            for name, beat in beats.items():
                (folder.path / "logs" / f"{name}.beat").write_text(json.dumps({"name": name, **common, **beat}))
            text, _ = said(cli, folder.path)
        finally:
            process.kill()
    assert text.startswith("nothing has ended for 1m11s: the loop waits for trainer (1 x 1m12s); episodes wait for"), (
        text
    )
    assert f"Silent: trainer, process {process.pid}, is stopped by a signal Too early to say" in text
    assert "event_file_writer" not in text


def test_a_run_that_goes_on_is_the_newest_and_changes_with_its_steps_whatever_the_times_of_files_are(cli) -> None:
    with RunFolder.create("runs", "goes_on") as goes_on, RunFolder.create("runs", "done") as done:
        for folder, name, when in ((goes_on, "running", 1.6e9), (done, "done", 1.7e9)):
            (folder.path / "status.json").write_text(json.dumps({"status": name, "reason": "", "time": when}))
        (goes_on.path / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.65e9}) + "\n")
        os.utime(done.path / "status.json", (1.8e9, 1.8e9))
        found = json.loads(cli("runs", "--json").out)
    assert [one["name"] for one in found] == ["done", "goes_on"]
    assert [one["changed"] for one in found] == [1.7e9, 1.65e9], "that of its last step"


def test_of_an_evaluation_it_says_how_far_it_is_and_what_came_of_it_so_far(cli) -> None:
    setup = EvalSetup(environment="counting", version=1, data_hash="", num_tasks=10, samples_per_task=2, seed=0,
                      greedy=False)  # fmt: skip
    with RunFolder.create("evals", "mine") as folder:
        folder.save_config({})
        files = EvaluationFiles(folder, 0)
        files.begin(setup.to_mapping(), resume=False)
        broken = replace(episode(0, 0, success=False), outcome=Outcome.INFRA_ERROR, retries=2)
        for number, one in (
            (0, broken),
            (0, episode(0, 0, success=True)),
            (1, episode(1, 0, success=False)),
            (2, broken),
        ):
            files.add(number, 0, one)
        part = folder.evaluation_file(0, ".part.jsonl")
        lines = [json.loads(line) for line in part.read_text().splitlines()]
        started = folder.status().time
        for line, after_s in zip(lines, (-500, 10, 30, 50), strict=True):  # the first before it was resumed
            line["ended"] = started + after_s
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        [found] = json.loads(cli("status", "evals/mine", "--json").out)["evaluations"]
        assert (found["ended"], found["planned"], found["retries"]) == (3, 20, 2)
        result = found["result"]
        assert (result["success"], result["low"], result["high"]) == (0.5, *success_interval([[True], [False]]))
        assert result["num_infra_errors"] == 1
        assert found["left_s"] == 17 * 20 and not found["finished"]
        said = " ".join(cli("status", "evals/mine").out.split())
        assert "3 of 20 episodes (15%), 2 begun again, about 5m40s left" in said
        assert "so far 0.500 [" in said and "may still move" in said
        folder.set_status(RunStatus.INTERRUPTED)
    said = cli("status", "evals/mine").out
    assert "left" not in said and "continue it: agentgym eval --resume evals/mine" in said
