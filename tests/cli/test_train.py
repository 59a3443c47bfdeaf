"""`agentgym train`: recipes, run folders, ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from agentgym.config import build, to_mapping
from agentgym.errors import InfraError, UserError
from agentgym.recipe import Recipe
from agentgym.run.ending import AlreadyDoneError, TrainResult
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.yaml import read_yaml


def test_a_run_ends_with_both_checkpoints_their_difference_and_a_picture(cli) -> None:
    end = cli.train("--name", "one", "--loop.steps", "30")
    assert end.code == 0, end.err
    assert "step 30/30" in end.out and "step-000000    0.400" in end.out
    assert "last minus first, task by task: +0.300" in end.out and "6 tasks better, 0 worse" in end.out
    folder = RunFolder.open("runs/one")
    assert folder.status().status is RunStatus.DONE
    assert (folder.path / "curve.png").read_bytes().startswith(b"\x89PNG")
    recipe, resume = cli.jobs.trained[0]
    assert recipe.loop.steps == 30 and not resume
    assert build(Recipe, folder.load_config()) == recipe


def test_a_run_with_nothing_left_to_learn_is_done_and_keeps_the_reason(cli) -> None:
    cli.jobs.nothing_left = "nothing is left to learn: all succeeded"
    end = cli.train("--name", "one", "--json")
    assert end.code == 0, end.err
    assert json.loads(end.out.splitlines()[-1])["nothing_left"] == cli.jobs.nothing_left
    status = RunFolder.open("runs/one").status()
    assert (status.status, status.reason) == (RunStatus.DONE, cli.jobs.nothing_left)


def test_a_run_that_was_asked_to_stop_ends_well_and_can_be_resumed(cli) -> None:
    cli.jobs.stopped = "stopped after step 3, as it was asked to"
    end = cli.train("--name", "one")
    assert end.code == 0 and f"{cli.jobs.stopped}; continue it: agentgym train --resume runs/one" in end.out
    status = RunFolder.open("runs/one").status()
    assert (status.status, status.reason) == (RunStatus.INTERRUPTED, cli.jobs.stopped)


def test_file_flags_and_overrides_count_in_this_order(cli) -> None:
    Path("r.yaml").write_text("env: {name: other}\nloop: {steps: 5, seed: 1}\noptimizer:\n")
    words = "r.yaml --name one --seed 2 loop.seed=3 --optimizer.lr=1e-3 --loss.clip_low 0.1"
    end = cli.train(*words.split())
    assert end.code == 0, end.err
    recipe = cli.jobs.trained[0][0]
    assert (recipe.env.name, recipe.loop.steps, recipe.loop.seed, recipe.trainer.seed) == ("counting", 5, 3, 2)
    assert (recipe.optimizer.lr, recipe.loss.clip_low) == (1e-3, 0.1)
    sources = RunFolder.open("runs/one").load_sources()
    assert sources["loop.steps"] == "r.yaml" and sources["loop.seed"] == "command line"
    assert sources["trainer.dtype"] == "recipe of builtin:tiny" and "loop.group_size" not in sources


def test_negative_values_are_values(cli) -> None:
    assert cli.train("--trainer.data_parallel_shard", "-1").code == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--trainer.prcs", "4"], ["command line: there is no field 'trainer.prcs'", "Did you mean 'trainer.procs'?"]),
        (["--loop.lr", "1"], ["Did you mean 'optimizer.lr' or 'trainer.critic.lr'?"]),
        (["--loop.steps", "many"], ["loop.steps is 'many' (str); allowed is int"]),
        (["--loop.steps"], ["--loop.steps needs a value"]),
        (["--loop.max_refills", "0"], ["loop.max_refills is 0; give at least 1"]),
        (["--loop.group_size", "1"], ["loop.group_size 1 at least 2"]),
        (["--env", "countng"], ["no environment 'countng'", "Did you mean 'counting'?"]),
        (["--set", "rewards={exakt: 1.0}"], ["no reward 'exakt'", "Did you mean 'exact'?"]),
        (["--sandbox.name", "ecko"], ["no sandbox 'ecko'", "Did you mean 'echo'?"]),
        (["--sandbox.name", "echo", "--sandbox.options.wrong_one", "1"], ["no option 'wrong_one'"]),
        (["--set", "logging.sinks=[tensorbord]"], ["no sink 'tensorbord'"]),
        (["--sead", "3"], ["--sead", "Did you mean '--seed'?"]),
        (["--recipe", "gone.yaml"], ["no config file 'gone.yaml'"]),
        (["--model.path", "./gone"], ["no model folder './gone'"]),
        (["--seed", "x"], ["--seed", "invalid int"]),
        (["--name", "a/b"], ["can't name a run"]),
        (["--name", "a/b", "--dry-run"], ["can't name a run"]),
        (["--name", "../b", "--restarts", "2"], ["can't name a run"]),
        (["--advantage", "per_turn"], ["write --advantage.name per_turn"]),
        (["--loss=gspo"], ["write --loss.name gspo"]),
        (["--loop", "3"], ["loop is a section of the recipe", "--loop.steps"]),
        (["--rewards", "{a: 1}"], ["rewards is a section of the recipe", "--rewards.NAME"]),
        (["--los", "gspo"], ["Did you mean '--loss.name'?"]),
        (["--resume", "runs/none"], ["--env cannot be given with it"]),
    ],
)
def test_the_users_mistake_is_one_message_and_exit_code_2_and_leaves_nothing(cli, words, expected) -> None:
    end = cli.train(*words)
    assert end.code == 2
    assert all(word in end.err for word in expected), end.err
    assert "Traceback" not in end.err
    assert not Path("runs").exists() and not cli.jobs.trained


def test_a_start_that_is_refused_leaves_no_folder(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        folder.event("looking for tasks")
        raise UserError("the environment has no tasks")

    cli.jobs.work = work
    assert cli.train("--name", "one").code == 2
    assert not Path("runs/one").exists()


def test_a_disk_that_is_full_gives_its_advice_wherever_it_is_noticed(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        folder.save_state({"step": 3})
        raise ExceptionGroup("the loop", [RuntimeError("save: [Errno 28] No space left on device")])

    cli.jobs.work = work
    end = cli.train("--name", "one")
    assert end.code == 1 and "make room" in end.err and "agentgym train --resume" in end.err
    status = RunFolder.open("runs/one").status()
    assert status.status is RunStatus.FAILED and "make room" in status.reason


def test_an_evaluation_on_a_full_disk_gives_the_advice_too(cli) -> None:
    def full(model: str, task: int, sample: int) -> bool:
        raise OSError(28, "No space left on device")

    cli.jobs.solves = full
    end = cli("eval", "builtin:tiny", "--env", "counting", "--set", "logging.sinks=[]", "--name", "one")
    assert end.code == 1 and "make room" in end.err and "agentgym eval --resume" in end.err
    status = RunFolder.open("evals/one").status()
    assert status.status is RunStatus.FAILED and "make room" in status.reason


def test_help_recipe_lists_every_field(cli, capsys) -> None:
    end, printed = cli("train", "--help-recipe"), capsys.readouterr().out
    assert end.code == 0 and "trainer.procs" in printed and "one of auto, native, vllm" in printed


def test_json_lines_can_all_be_read_and_end_with_the_result(cli) -> None:
    end = cli.train("--json", "--loop.steps", "3", "--name", "one")
    events = [json.loads(line) for line in end.out.splitlines()]
    assert [e["step"] for e in events if e["event"] == "step"] == [1, 2, 3]
    assert events[-1]["event"] == "result" and events[-1]["last"]["success"] == 0.7
    assert events[-1]["difference"]["better"] == 6


def test_a_taken_name_is_refused(cli) -> None:
    assert cli.train("--name", "one").code == 0
    end = cli.train("--name", "one")
    assert end.code == 2 and "--resume runs/one" in end.err


def test_resume_takes_the_runs_own_config_and_single_fields(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        folder.save_state({"position": 2})
        if len(cli.jobs.trained) == 1:
            raise InfraError("the engine is gone")

    cli.jobs.work = work
    end = cli.train("--name", "one", "--loss.clip_low", "0.1")
    assert end.code == 1 and "agentgym train --resume runs/one" in end.err
    assert RunFolder.open("runs/one").status().status is RunStatus.FAILED
    end = cli("train", "--resume", "runs/one", "--loop.steps", "90")
    assert end.code == 0, end.err
    recipe, resume = cli.jobs.trained[1]
    assert resume and (recipe.loss.clip_low, recipe.loop.steps) == (0.1, 90)
    assert read_yaml("runs/one/config.yaml") == to_mapping(recipe)
    sources = RunFolder.open("runs/one").load_sources()
    assert sources["loop.steps"] == sources["loss.clip_low"] == "command line"
    assert sources["trainer.dtype"] == "recipe of builtin:tiny" and "loop.group_size" not in sources
    assert RunFolder.open("runs/one").status().status is RunStatus.DONE


def test_a_refused_resume_leaves_a_finished_run_as_it_was(cli) -> None:
    assert cli.train("--name", "one").code == 0
    before = [Path("runs/one", name).read_text() for name in ("config.yaml", "config.sources.json")]

    async def work(recipe, folder, reporter) -> None:
        raise UserError("it is done")

    cli.jobs.work = work
    end = cli("train", "--resume", "runs/one", "--eval.tasks", "7")
    assert end.code == 2 and "it is done" in end.err
    assert [Path("runs/one", name).read_text() for name in ("config.yaml", "config.sources.json")] == before
    assert RunFolder.open("runs/one").status().status is RunStatus.DONE


def test_a_missing_run_can_not_be_resumed(cli) -> None:
    assert cli.train("--name", "one").code == 0
    end = cli("train", "--resume", "runs/onne")
    assert end.code == 2 and "Did you mean 'one'" in end.err


def test_a_run_that_another_process_writes_is_refused(cli) -> None:
    assert cli.train("--name", "one").code == 0
    with RunFolder.open("runs/one", for_writing=True):
        end = cli("train", "--resume", "runs/one")
    assert end.code == 2 and "written by process" in end.err


@pytest.mark.parametrize(
    ("error", "code", "words", "has_traceback"),
    [
        (InfraError("the disk is full"), 1, ["agentgym: the disk is full"], True),
        (ZeroDivisionError("oh"), 1, ["agentgym: ZeroDivisionError: oh"], True),
        (UserError("a wrong name"), 2, ["agentgym: a wrong name"], False),
        (ExceptionGroup("g", [ExceptionGroup("h", [InfraError("gone")])]), 1, ["agentgym: gone"], True),
        (ExceptionGroup("g", [UserError("a"), UserError("b")]), 2, ["agentgym: a\nb"], False),
        (ExceptionGroup("g", [UserError("a"), KeyError("k")]), 1, ["a", "KeyError: 'k'"], True),
    ],
)
def test_a_failed_run_says_why_and_keeps_the_traceback(cli, error, code, words, has_traceback) -> None:
    async def work(recipe, folder, reporter) -> None:
        raise error

    cli.jobs.work = work
    end = cli.train("--name", "one")
    assert end.code == code
    assert all(word in end.err for word in words) and "Traceback" not in end.err
    assert Path("runs/one/traceback.txt").is_file() == has_traceback == ("traceback.txt" in end.err)
    if code == 2:
        assert not Path("runs/one").exists()
        return
    status = RunFolder.open("runs/one").status()
    assert status.status is RunStatus.FAILED and status.reason in end.err
    RunFolder.open("runs/one", for_writing=True).close()  # the lock is free again


def test_debug_shows_the_traceback(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        raise UserError("a wrong name")

    cli.jobs.work = work
    end = cli.train("--debug")
    assert end.code == 2 and "Traceback" in end.err and "in work" in end.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_cancels_the_job_which_cleans_up(cli, number: int, code: int) -> None:
    waited, cleaned = [], []

    async def work(recipe, folder, reporter) -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
            waited.append(True)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    cli.jobs.work = work
    before = signal.getsignal(number)
    end = cli.train("--name", "one")
    assert not waited
    assert end.code == code and cleaned
    assert "interrupted" in end.err and "Traceback" not in end.err
    assert RunFolder.open("runs/one").status().status is RunStatus.INTERRUPTED
    assert signal.getsignal(number) is before


def test_an_error_while_cleaning_up_after_a_signal_is_still_an_interrupt(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
        finally:
            raise InfraError("a replica was gone already")

    cli.jobs.work = work
    assert cli.train().code == 143


def test_warnings_of_the_library_come_with_the_runs_own_lines(cli) -> None:
    import logging

    async def work(recipe, folder, reporter) -> None:
        logging.getLogger("agentgym.actors").warning("replica %d died", 1)

    cli.jobs.work = work
    assert "warning: replica 1 died" in cli.train("--name", "one").out
    assert "warning: replica 1 died" in Path("runs/one/events.log").read_text()  # and can be read afterwards


def test_a_run_that_was_killed_after_its_last_word_is_done_by_a_resume(cli) -> None:
    assert cli.train("--name", "one").code == 0
    result = TrainResult(run_dir=Path("runs/one"), steps=30, first=None, last=None, difference=None)

    async def nothing_left(*_: object) -> None:
        raise AlreadyDoneError("runs/one is done", result)

    cli.jobs.work = nothing_left
    refused = cli("train", "--resume", "runs/one")
    assert refused.code == 2 and "runs/one is done" in refused.err
    status = Path("runs/one/status.json")
    status.write_text(json.dumps({**json.loads(status.read_text()), "status": "running"}))  # as kill -9 leaves it
    assert cli("train", "--resume", "runs/one").code == 0
    assert json.loads(status.read_text())["status"] == "done"


def test_a_folder_that_is_moved_in_mid_run_is_said_and_has_no_stub_beside_it(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        folder.append_metrics(1, {"loss": 0.5})
        folder.path.rename("runs/elsewhere")
        folder.append_metrics(2, {"loss": 0.5})

    cli.jobs.work = work
    end = cli("train", "--env", "counting", "--name", "one", "--set", "logging.sinks=[]")
    assert end.code == 1 and "was moved to" in end.err and "--resume" in end.err and "make room" not in end.err
    assert [path.name for path in Path("runs").iterdir()] == ["elsewhere"]
    assert RunFolder.open("runs/elsewhere").status().status is RunStatus.FAILED
