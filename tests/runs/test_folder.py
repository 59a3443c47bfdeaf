"""A run's folder: whole files, one writer, readable after every kind of end."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentgym.errors import InfraError, UserError
from agentgym.runs.files import full_disk, write_whole, writing
from agentgym.runs.folder import RunFolder, RunStatus, runs_in
from agentgym.sandbox import Capabilities
from agentgym.types import Episode, FinishReason, Group, Task, Turn, VersionSpan


@pytest.fixture
def folder(tmp_path: Path):
    with RunFolder.create(tmp_path, "one") as made:
        yield made


def group(group_id: int, size: int = 2) -> Group:
    task = Task(task_id=f"task-{group_id}", prompt=({"role": "user", "content": "né"},), answer=(1, [2]))
    turn = Turn(
        prompt_ids=(1, 2),
        completion_ids=(3, 4, 5),
        logprobs=(-0.1, -0.25, -1e-9),
        versions=(VersionSpan(version=0, start=0, end=2), VersionSpan(version=1, start=2, end=3)),
        finish_reason=FinishReason.STOP,
    )
    episodes = [Episode(episode_id=f"{group_id}-{index}", task=task, seed=index, turns=[turn]) for index in range(size)]
    return Group(group_id=group_id, task=task, start_version=1, episodes=episodes, advantages=[1.0, -1.0][:size])


def test_config_state_and_status_come_back(folder: RunFolder) -> None:
    folder.save_config({"trainer": {"procs": 2}, "sinks": ["a"]})
    folder.save_state({"step": 3, "rng": [1, 2]})
    assert folder.load_config() == {"trainer": {"procs": 2}, "sinks": ["a"]}
    assert folder.load_state() == {"step": 3, "rng": [1, 2]}
    assert folder.status().status is RunStatus.RUNNING
    folder.set_status(RunStatus.FAILED, "no engine")
    again = RunFolder.open(folder.path).status()
    assert (again.status, again.reason) == (RunStatus.FAILED, "no engine")


def test_groups_come_back_equal_with_all_token_data(folder: RunFolder) -> None:
    trained, skipped = [group(7), group(8)], [group(9)]
    folder.save_groups(12, trained, skipped)
    assert folder.episode_steps() == [12]
    saved = list(folder.read_episodes(12))
    assert [one.episode for one in saved] == [e for g in [*trained, *skipped] for e in g.episodes]
    places = [(s.group_id, s.index, s.start_version, s.advantage, s.trained) for s in saved]
    assert places == [
        (number, index, 1, advantage, number != 9)
        for number in (7, 8, 9)
        for index, advantage in enumerate((1.0, -1.0))
    ]
    assert not folder.episode_steps(evaluation=True)


def test_evaluations_are_kept_apart(folder: RunFolder) -> None:
    folder.save_evaluation(20, [group(0).episodes, group(1).episodes])
    saved = list(folder.read_episodes(20, evaluation=True))
    places = [(s.group_id, s.index, s.start_version, s.advantage) for s in saved]
    assert places == [(number, index, 20, None) for number in (0, 1) for index in (0, 1)]
    assert folder.episode_steps() == [] and folder.episode_steps(evaluation=True) == [20]


def test_asking_for_a_step_without_episodes_says_which_there_are(folder: RunFolder) -> None:
    folder.save_groups(1, [group(0)])
    folder.save_groups(4, [group(1)])
    with pytest.raises(UserError, match=r"step 9.*steps 1 to 4"):
        list(folder.read_episodes(9))


def test_metrics_come_back_and_later_rows_of_a_resumed_run_count(folder: RunFolder) -> None:
    for step in (1, 2, 3):
        folder.append_metrics(step, {"a": step, "b": math.inf})
    for step in (2, 3):  # resumed after step 1
        folder.append_metrics(step, {"a": step * 10})
    rows = folder.read_metrics()
    assert [(row.step, row.metrics["a"]) for row in rows] == [(1, 1.0), (2, 20.0), (3, 30.0)]
    assert math.isnan(rows[0].metrics["b"])
    assert "Infinity" not in (folder.path / "metrics.jsonl").read_text()


def test_a_torn_last_line_is_left_out_and_the_next_line_stands_alone(folder: RunFolder) -> None:
    folder.append_metrics(1, {"a": 1})
    folder.append_metrics(2, {"a": 2})
    path = folder.path / "metrics.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # as after a power cut
    assert [row.step for row in folder.read_metrics()] == [1]
    folder.append_metrics(3, {"a": 3})
    assert [row.step for row in folder.read_metrics()] == [1, 3]


def test_a_torn_episode_file_gives_what_is_whole(folder: RunFolder) -> None:
    folder.save_groups(1, [group(i) for i in range(40)])
    (path,) = folder.path.glob("episodes/*.gz")
    path.write_bytes(path.read_bytes()[:-400])
    saved = list(folder.read_episodes(1))
    assert 0 < len(saved) < 80


def test_a_full_disk_is_an_infra_error_that_names_the_file(folder: RunFolder) -> None:
    (folder.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(InfraError, match=r"metrics\.jsonl: No space left on device.*--resume"):
        folder.append_metrics(1, {"a": 1})


@pytest.mark.parametrize("reason", ["the disk is full", "é" * 9000])
def test_the_status_is_true_on_a_full_disk(folder: RunFolder, reason: str) -> None:
    folder.set_status(RunStatus.FAILED, "é" * 2000)  # more than one block
    (folder.path / ".status.json.part").symlink_to("/dev/full")  # so the file can't be replaced
    folder.set_status(RunStatus.FAILED, reason)
    record = RunFolder.open(folder.path).status()
    assert record.status is RunStatus.FAILED and reason.startswith(record.reason) and len(record.reason) > 10


def test_an_error_of_a_full_disk_is_known_by_its_causes(tmp_path: Path) -> None:
    def raised(cause: Exception) -> BaseException:
        try:
            raise RuntimeError("the checkpoint was not written") from cause
        except RuntimeError as error:
            return error

    advice = full_disk(raised(OSError(28, "No space left on device")), tmp_path)
    assert "the checkpoint was not written" in str(advice) and "agentgym train --resume RUN" in str(advice)
    assert full_disk(raised(OSError(2, "No such file")), tmp_path) is None
    with pytest.raises(InfraError) as named, writing(tmp_path):
        raise OSError(28, "No space left on device")
    assert full_disk(named.value, tmp_path) is None, "it has the advice already"


def test_a_place_where_no_run_can_be_is_the_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/runs")):
        with pytest.raises(UserError, match=r"can't write .*; choose another logging\.runs_dir"):
            RunFolder.create(place, "run")


def test_a_name_of_ours_that_is_taken_gets_a_number(tmp_path: Path) -> None:
    names = []
    for _ in range(3):
        with RunFolder.create(tmp_path, "math-20260101-120000", numbered=True) as folder:
            names.append(folder.name)
    assert names == ["math-20260101-120000", "math-20260101-120000-2", "math-20260101-120000-3"]


def test_what_was_saved_before_the_disk_was_full_stays_readable(tmp_path: Path) -> None:
    script = f"""
        import resource
        from agentgym.errors import InfraError
        from agentgym.runs.folder import RunFolder
        folder = RunFolder.create({str(tmp_path)!r}, "full")
        folder.save_state({{"step": 1}})
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))  # the system refuses more, as a full disk does
        saved = 0
        try:
            for step in range(1, 1000):
                folder.append_metrics(step, {{"reward": 0.5, "loss": 0.25}})
                saved = step
        except InfraError as error:
            print(saved, "File too large" in str(error))
        try:
            folder.save_state({{"step": 2, "long": "x" * 4000}})
        except InfraError as error:
            print("state.json" in str(error))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    (count, refused), (named,) = (line.split() for line in done.stdout.splitlines())
    assert refused == named == "True" and int(count) > 5
    folder = RunFolder.open(tmp_path / "full")
    assert [row.step for row in folder.read_metrics()] == list(range(1, int(count) + 1))
    assert (folder.path / "metrics.jsonl").read_bytes().endswith(b"\n")  # the part line was cut off
    assert folder.load_state() == {"step": 1}
    assert not list(folder.path.glob(".*.part"))
    assert folder.status().status is RunStatus.LOST  # it ended without recording it


def test_two_processes_do_not_write_one_run(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="written by process"):
        RunFolder.open(folder.path, for_writing=True)
    assert RunFolder.open(folder.path).status().status is RunStatus.RUNNING  # reading is free
    folder.close()
    RunFolder.open(folder.path, for_writing=True).close()


def test_a_run_that_was_killed_is_lost(tmp_path: Path) -> None:
    script = f"""
        import os, signal
        from agentgym.runs.folder import RunFolder
        folder = RunFolder.create({str(tmp_path)!r}, "killed")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=60, check=False)
    assert done.returncode == -9
    assert RunFolder.open(tmp_path / "killed").status().status is RunStatus.LOST


def test_a_run_of_another_host_is_not_called_lost(folder: RunFolder) -> None:
    """Its lock, held there, is not visible here."""
    folder.close()
    assert folder.status().status is RunStatus.LOST
    path = folder.path / "status.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"host": "another-host"}))
    assert folder.status().status is RunStatus.RUNNING


@pytest.mark.parametrize("name", ["", "../x", "a b", ".hidden", "a/b"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="can't name a run"):
        RunFolder.create(tmp_path, name)


def test_a_taken_name_is_refused(folder: RunFolder) -> None:
    with pytest.raises(UserError, match=r"already.*--resume"):
        RunFolder.create(folder.path.parent, "one")


def test_a_missing_run_names_the_nearest(folder: RunFolder, tmp_path: Path) -> None:
    assert runs_in(tmp_path) == ["one"]
    with pytest.raises(UserError, match="Did you mean 'one'"):
        RunFolder.open(tmp_path / "onne")
    with pytest.raises(UserError, match=r"is not a run of agentgym\. Runs in it: one"):
        RunFolder.open(tmp_path)


def test_a_run_remembers_its_sandbox(folder: RunFolder) -> None:
    assert folder.load_sandbox() == {}
    able = dict.fromkeys((field.name for field in dataclasses.fields(Capabilities)), True)
    folder.save_sandbox(Capabilities(**{**able, "backend": "docker", "detail": "an engine", "sessions": False}))
    found = RunFolder.open(folder.path).load_sandbox()
    assert (found["backend"], found["sessions"], found["unsafe"]) == ("docker", False, False)
    folder.save_images({"debian:12": "sha256:1"})
    folder.save_sandbox(Capabilities(**{**able, "backend": "plain", "detail": "", "isolated": False}))
    assert folder.load_sandbox()["unsafe"] is True
    folder.save_sandbox(Capabilities(**{**able, "backend": "docker"}))  # resumed: not safe again by that
    found = folder.load_sandbox()
    assert (found["backend"], found["unsafe"], found["before"]) == ("docker", True, ["plain"])
    folder.save_images({"debian:13": "sha256:2"})
    assert folder.load_sandbox()["images"] == {"debian:12": "sha256:1", "debian:13": "sha256:2"}


def test_a_run_without_state_can_not_be_resumed(folder: RunFolder) -> None:
    with pytest.raises(UserError, match="before it saved anything"):
        folder.load_state()


def test_checkpoints_are_listed_by_step(folder: RunFolder) -> None:
    for step in (20, 0):
        (folder.checkpoint_dir(step) / "hf").mkdir(parents=True)
    (folder.checkpoint_dir(40) / "hf.partial").mkdir(parents=True)
    assert folder.checkpoint_steps() == [0, 20]
    assert folder.checkpoint_steps(unfinished=True) == [0, 20, 40]


def test_a_folder_that_is_moved_in_mid_run_ends_the_run_where_it_is_and_leaves_nothing_beside_it(tmp_path) -> None:
    with RunFolder.create(tmp_path, "one") as folder:
        folder.append_metrics(1, {"loss": 0.5})
        folder.path.rename(tmp_path / "two")
        for write in (
            lambda: folder.append_metrics(2, {"loss": 0.5}),
            lambda: folder.save_state({"position": None}),
            lambda: folder.save_config({}),
            lambda: folder.checkpoint_dir(2),
            lambda: folder.save_groups(2, []),
            lambda: write_whole(folder.path / "journal" / "step-000002.batch", b""),
        ):
            with pytest.raises(InfraError):
                write()
        assert f"was moved to {tmp_path / 'two'} while the run wrote it" in str(folder.moved())
        assert f"--resume {tmp_path / 'two'}" in str(folder.moved())
        folder.set_status(RunStatus.FAILED, str(folder.moved()))
        assert [path.name for path in tmp_path.iterdir()] == ["two"]
        assert RunFolder.open(tmp_path / "two").status().reason == str(folder.moved())
        shutil.rmtree(tmp_path / "two")
        with pytest.raises(InfraError, match="was removed while the run wrote it"):
            folder.set_status(RunStatus.FAILED, "")
        assert not [*tmp_path.iterdir()]
