"""Every fault that the auditor names is planted in a run that has none, and nothing else is found then."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from view_runs import episode, group

from agentgym.runs import leftovers
from agentgym.runs.audit import audit
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.files import append_line
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.types import Outcome

pytestmark = pytest.mark.usefixtures("no_engine")


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _rewrite(path: Path, change: Callable[[list[dict]], list[dict]]) -> None:
    path.write_bytes(gzip.compress("".join(json.dumps(one) + "\n" for one in change(_lines(path))).encode()))


def _rows(run: Path, change: Callable[[list[str]], list[str]]) -> None:
    file = run / "metrics.jsonl"
    file.write_text("\n".join(change(file.read_text().splitlines())) + "\n")


def _episodes(step: int, change: Callable[[list[dict]], list[dict]]) -> Callable[[Path], None]:
    return lambda run: _rewrite(run / "episodes" / f"step-{step:06d}.jsonl.gz", change)


def _sampled_by(version: int) -> Callable[[list[dict]], list[dict]]:
    def change(records: list[dict]) -> list[dict]:
        for turn in records[0]["episode"]["turns"]:
            turn["versions"] = [[version, 0, 1]]
        return records

    return change


def _regrouped(records: list[dict]) -> list[dict]:
    """Group 0 again, under new names."""
    for number, record in enumerate(records[:4]):
        record["group_id"], record["episode"]["episode_id"] = 0, f"again-{number}"
    return records


def _cut(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:-4])


def _evaluation(change: Callable[[list[dict]], list[dict]]) -> Callable[[Path], None]:
    return lambda run: _rewrite(run / "evals/step-000000.jsonl.gz", change)


PLANTED: dict[str, tuple[Callable[[Path], object], set[tuple[str, str]]]] = {
    "a step without metrics": (lambda run: _rows(run, lambda rows: [rows[0], rows[2]]), {("metrics", "no row")}),
    "a step with two rows": (lambda run: _rows(run, lambda rows: [*rows[:2], *rows[1:]]), {("metrics", "2 rows")}),
    "rows in another order": (lambda run: _rows(run, lambda rows: rows[::-1]), {("metrics", "not in the order")}),
    "a step whose episodes are gone": (
        lambda run: (run / "episodes/step-000002.jsonl.gz").unlink(),
        {("lost", "step 2 has no episodes"), ("lost", "3 of 9 groups are in no step: 3 to 5")},
    ),
    "an episode that is there twice": (
        _episodes(2, lambda records: [*records, records[0]]),
        {("twice", "episode g000003-e00"), ("lost", "13 episodes, its metrics count 12")},
    ),
    "a group that two steps trained": (
        _episodes(2, _regrouped),
        {("twice", "group 0 is in step 1 and in step 2"), ("lost", "1 of 9 groups are in no step: 3")},
    ),
    "an episode that is lost": (
        _episodes(3, lambda records: records[:-1]),
        {("lost", "group 8 lacks its episodes 3"), ("lost", "11 episodes, its metrics count 12")},
    ),
    "a group that is lost": (
        _episodes(3, lambda records: records[4:]),
        {("lost", "groups are in no step: 6"), ("lost", "8 episodes"), ("lost", "1 groups, its metrics count 2")},
    ),
    "a file that is cut short": (_cut("episodes/step-000003.jsonl.gz"), {("torn", "it can't be read to its end")}),
    "an episode of weights that came later": (
        _episodes(3, _sampled_by(3)),
        {("stale", "by version 3, but trained by step 3")},
    ),
    "an episode that is too old": (_episodes(3, _sampled_by(0)), {("stale", "2 versions old; allowed are 1")}),
    "episodes after the last step": (
        lambda run: shutil.copy(run / "episodes/step-000003.jsonl.gz", run / "episodes/step-000004.jsonl.gz"),
        {("twice", "ended at step 3")},
    ),
    "a checkpoint without a position": (
        lambda run: (run / "checkpoints/step-000002/position.json").unlink(),
        {("checkpoint", "position.json is missing")},
    ),
    "a checkpoint of another step": (
        lambda run: (run / "checkpoints/step-000002/trainer/manifest.json").write_text('{"step": 1, "files": {}}'),
        {("checkpoint", "state is of step 1")},
    ),
    "a state that is cut short": (_cut("checkpoints/step-000002/trainer/state"), {("checkpoint", "4 of 8 bytes")}),
    "weights that are cut short": (
        _cut("checkpoints/step-000003/hf/model.safetensors"),
        {("checkpoint", "model.safetensors has"), ("checkpoint", "step 3, which has no whole checkpoint")},
    ),
    "a state of another step": (
        lambda run: (run / "state.json").write_text('{"position": {"step": 2}}'),
        {("state", "of step 2")},
    ),
    "an end that was not measured": (lambda run: (run / "comparison.json").unlink(), {("evaluation", "not compared")}),
    "an evaluation without a result": (
        lambda run: (run / "evals/step-000000.json").write_text('{"setup": {}, "result": null}'),
        {("evaluation", "no result")},
    ),
    "an evaluation with an episode twice": (
        lambda run: _rewrite(run / "evals/step-000000.jsonl.gz", lambda records: [records[0], *records]),
        {("twice", "sample 0 of task 0 is there twice")},
    ),
    "an evaluation that lacks one": (
        lambda run: _rewrite(run / "evals/step-000000.jsonl.gz", lambda records: records[1:]),
        {("lost", "task 0 lacks its samples 0")},
    ),
    "an evaluation with a sample too many and one too few": (
        _evaluation(lambda records: [{**records[0], "index": 2}, *records[1:]]),
        {("lost", "task 0 lacks its samples 0"), ("twice", "sample 2 of task 0 is more than")},
    ),
    "an evaluation with a sample of another task": (
        _evaluation(
            lambda records: [{**records[0], "episode": {**records[2]["episode"], "episode_id": "x"}}, *records[1:]]
        ),
        {("lost", "task 0 is 'count-1', and 'count-0' in sample 1")},
    ),
    "an evaluation with one episode under two names": (
        _evaluation(lambda records: [records[0], {**records[0], "index": 1}, *records[2:]]),
        {("twice", "is there as sample 1 of task 0 and as another")},
    ),
    "an evaluation whose result is not that of its episodes": (
        lambda run: (run / "evals/step-000000.json").write_text(
            '{"setup": {"num_tasks": 2, "samples_per_task": 2}, "result": {"success": 0.5, "num_episodes": 4}}'
        ),
        {("evaluation", "says 0.5 success, its episodes 1")},
    ),
    "an evaluation whose result counts others": (
        lambda run: (run / "evals/step-000000.json").write_text(
            '{"setup": {"num_tasks": 2, "samples_per_task": 2}, "result": {"success": 1, "num_episodes": 3}}'
        ),
        {("evaluation", "counts 3 episodes, of which 4 are there")},
    ),
    "an evaluation whose result is no object": (
        lambda run: (run / "evals/step-000000.json").write_text(
            '{"setup": {"num_tasks": 2, "samples_per_task": 2}, "result": "x"}'
        ),
        {("evaluation", "its result is damaged")},
    ),
    "a file that was being written": (
        lambda run: (run / "episodes/.step-000009.jsonl.gz.part").touch(),
        {("left behind", "being written")},
    ),
    "a checkpoint that was being written": (
        lambda run: (run / "checkpoints/step-000003/trainer.partial").mkdir(),
        {("left behind", "being written")},
    ),
}


def test_a_whole_run_has_no_fault(run: Path) -> None:
    found = audit(run)
    assert (found.findings, found.notes) == ([], [])
    assert (found.steps, found.trained, found.skipped, found.checkpoints) == (3, 24, 12, [0, 2, 3])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found_and_nothing_else(name: str, run: Path) -> None:
    plant, expected = PLANTED[name]
    plant(run)
    faults = audit(run).findings
    assert len(faults) == len(expected), faults
    for kind, words in expected:
        assert [one for one in faults if one.kind == kind and words in one.text], (words, faults)


def test_a_run_that_is_not_done_is_judged_up_to_its_newest_whole_checkpoint(run: Path) -> None:
    """What a resume undoes is no fault: a half save, a step that was trained but not saved."""
    (run / "checkpoints/step-000003/position.json").unlink()
    (run / "episodes/step-000003.jsonl.gz").unlink()
    (run / "comparison.json").unlink()
    record = json.loads((run / "status.json").read_text())
    (run / "status.json").write_text(json.dumps({**record, "status": "failed"}))
    found = audit(run)
    assert (found.findings, found.steps) == ([], 2)
    assert found.notes == ["the checkpoint of step 3 is half, as its save was interrupted: position.json is missing"]
    shutil.rmtree(run / "checkpoints/step-000000/hf")  # older than a whole one: no save that was just interrupted
    assert [one.kind for one in audit(run).findings] == ["checkpoint"]


def test_groups_after_which_nothing_was_left_to_learn_are_of_no_step_and_not_lost(run: Path) -> None:
    position = run / "checkpoints" / "step-000003" / "position.json"
    position.write_text(json.dumps({"step": 3, "next_group": 10}))
    assert [fault.kind for fault in audit(run).findings] == ["lost"]
    RunFolder.open(run).save_groups(4, [], [group(9, wins=0, version=3, newest=3)])
    assert audit(run).findings == [] and audit(run).skipped == 4 * 4
    RunFolder.open(run).save_groups(4, [group(9, wins=2, version=3, newest=3)], [])
    assert ("twice", "the run ended at step 3") in [(fault.kind, fault.text) for fault in audit(run).findings]


def test_a_torn_line_of_metrics_is_said_and_is_no_fault_where_the_step_has_its_row(run: Path) -> None:
    _rows(run, lambda rows: [rows[0], rows[1][:20], *rows[1:]])
    found = audit(run)
    assert (found.findings, found.notes) == ([], ["metrics.jsonl: line 2 is torn"])


def test_a_process_of_the_run_is_found_after_its_end(run: Path) -> None:
    (run / "logs").mkdir()
    words = [sys.executable, "-c", "input()", "--log", str(run / "logs" / "trainer.0.log")]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as left:
        try:
            assert [(one.kind, one.where) for one in audit(run).findings] == [("left behind", f"process {left.pid}")]
        finally:
            left.kill()
    assert audit(run).findings == []


def test_shared_memory_is_found_by_the_process_that_wrote_the_run(run: Path, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    append_line(run / "starts.jsonl", json.dumps({"step": 0, "process": 7}))  # an earlier start
    mine, earlier, other = (tmp_path / f"agentgym-whole-{pid}" for pid in (os.getpid(), 7, 8))
    for folder in (mine, earlier, other):
        folder.mkdir()
    assert {one.where for one in audit(run).findings} == {str(mine), str(earlier)}


def test_a_container_is_found_by_the_process_in_its_label_unless_that_is_the_auditor(run: Path, tmp_path: Path) -> None:
    append_line(run / "starts.jsonl", json.dumps({"step": 0, "process": 7}))  # an earlier start
    docker = tmp_path / "docker"
    lines = ("abc running host/boot/1:7:55:xyz", "def exited h:1:5:x", f"ghi running h:{os.getpid()}:5:x")
    docker.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in lines))
    docker.chmod(0o755)
    assert [(one.where, one.text) for one in audit(run).findings] == [("container abc", "running")]


def test_groups_that_no_later_step_shows_are_missed_by_the_position(run: Path) -> None:
    """The last group of all: only the checkpoint knows that it was taken."""
    _rewrite(run / "episodes/step-000003.jsonl.gz", lambda records: records[:-4])
    assert "1 of 9 groups are in no step: 8" in [one.text for one in audit(run).findings]


def _starts(run: Path, *starts: tuple[int, dict]) -> None:
    for step, loop in starts:
        append_line(
            run / "starts.jsonl", json.dumps({"step": step, "config": {"loop": loop, "eval": {"at_end": True}}})
        )


def test_a_step_is_judged_by_the_settings_of_its_own_start(run: Path) -> None:
    """Steps 1 and 2 with 4 episodes a group and staleness 1, step 3 after a resume with 2, and with 2."""
    _rewrite(run / "episodes/step-000003.jsonl.gz", lambda records: [r for r in records if r["index"] < 2])
    _rewrite(run / "episodes/step-000003.jsonl.gz", _sampled_by(0))
    _rows(run, lambda rows: [*rows[:2], rows[2].replace('"rollout/episodes":12.0', '"rollout/episodes":6.0')])
    RunFolder.open(run).save_config({"loop": {"group_size": 2, "max_staleness": 2}, "eval": {"at_end": True}})
    before, undone, after = (
        (0, {"group_size": 4, "max_staleness": 1}),
        (2, {"group_size": 9, "max_staleness": 0}),
        (2, {"group_size": 2, "max_staleness": 2}),
    )
    _starts(run, before, undone, after)
    assert audit(run).findings == []
    _rewrite(run / "episodes/step-000002.jsonl.gz", lambda records: [r for r in records if r["index"] < 2])
    assert {"group 3 lacks its episodes 2 to 3"} <= {one.text for one in audit(run).findings}


def test_settings_that_can_not_be_read_are_a_fault(run: Path) -> None:
    (run / "config.yaml").write_text("a: [")
    assert [(one.kind, one.where) for one in audit(run).findings] == [("state", "config.yaml")]


def test_an_evaluation_of_its_own_is_sound_without_what_training_leaves(run: Path) -> None:
    for name in ("metrics.jsonl", "state.json", "comparison.json"):
        (run / name).unlink()
    for name in ("checkpoints", "episodes"):
        shutil.rmtree(run / name)
    assert audit(run).findings == []
    _rewrite(run / "evals/step-000000.jsonl.gz", lambda records: records[1:])
    assert [one.text for one in audit(run).findings] == ["task 0 lacks its samples 0"]
    (run / "config.yaml").write_text("[[")
    assert audit(run).findings[0].where == "config.yaml"


def test_an_interrupted_evaluation_is_judged_by_what_has_ended(tmp_path: Path) -> None:
    broken = replace(episode(0, 0, success=False), outcome=Outcome.INFRA_ERROR)
    with RunFolder.create(tmp_path, "cut") as folder:
        files = EvaluationFiles(folder, 0, "mark")
        files.begin({"num_tasks": 4, "samples_per_task": 2, "shard": "2/2"}, resume=False)
        for index, one in ((0, broken), (0, episode(0, 0, success=True)), (1, episode(0, 1, success=True))):
            files.add(1, index, one)  # what broke is played again
        folder.set_status(RunStatus.INTERRUPTED)
    found = audit(folder.path)
    assert (found.findings, found.played) == ([], 2)
    assert f"2 episodes have ended, was interrupted: `agentgym eval --resume {folder.path}`" in found.notes[0]
    files.add(1, 1, episode(0, 1, success=True))
    assert [one.text for one in audit(folder.path).findings] == ["sample 1 of task 1 was played twice"]
    rows = [[episode(n, sample, success=True) for sample in (0, 1)] for n in (1, 3)]
    files.save_episodes(rows, [1, 3])
    files.save_result({"num_tasks": 4, "samples_per_task": 2, "shard": "2/2"}, {"success": 1.0, "num_episodes": 4})
    assert (audit(folder.path).findings, audit(folder.path).evaluations) == ([], [0])


def test_a_custom_loops_run_is_not_asked_for_what_only_the_built_in_loop_promises(run: Path) -> None:
    """It records other groups, steps without any, and no checkpoint or evaluation at the end."""
    for name in ("state.json", "comparison.json", "checkpoints/step-000003/position.json", "evals/step-000003.json"):
        (run / name).unlink()
    shutil.rmtree(run / "checkpoints" / "step-000003")
    for step in (0, 2):
        (run / "checkpoints" / f"step-{step:06d}" / "position.json").rename(
            run / "checkpoints" / f"step-{step:06d}" / "loop.pickle"
        )
    _rows(run, lambda rows: [row for row in rows if json.loads(row)["step"] != 2])
    (run / "episodes" / "step-000002.jsonl.gz").unlink()
    _episodes(1, lambda lines: [one for one in lines if one["index"] < 2])(run)
    _rows(run, lambda rows: [json.dumps({"step": json.loads(row)["step"]}) for row in rows])
    found = audit(run)
    assert found.findings == [] and any("a custom loop's" in note for note in found.notes)
    (run / "checkpoints" / "step-000002" / "trainer" / "state").write_bytes(b"1")
    _episodes(3, lambda lines: [*lines, lines[0]])(run)
    assert sorted(fault.kind for fault in audit(run).findings) == ["checkpoint", "twice"]
