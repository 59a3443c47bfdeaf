"""What schedulers are given. The script of SLURM runs here, with a run and a scontrol that note their calls."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.errors import UserError
from agentgym.run.clusters import Order, Pods, SkyTask, kubernetes_objects, skypilot_task, slurm_script

ORDER = Order(name="one", recipe="recipe.yaml", runs_dir="runs", folder="/work", python="./run", num_nodes=3)
# it saves for a moment: bash 5.2 may lose the exit code of what ends just when a signal comes
RUN = """#!/bin/bash
echo "run $*" >> calls
trap 'echo notice >> calls; sleep 0.3; exit 75' TERM
if [ -e slow ]; then echo $$ > pid; touch started; while :; do sleep 0.01; done; fi
exit "$(cat code)"
"""


def program(path: Path, script: str) -> None:
    path.write_text(script)
    path.chmod(0o755)


def batch(folder: Path, before_it_is_known: str = "") -> subprocess.Popen[bytes]:
    """before_it_is_known: what the script does between the run's start and the assignment of its number."""
    program(folder / "run", RUN)
    program(folder / "scontrol", '#!/bin/bash\necho "scontrol $*" >> calls\n')
    script = slurm_script(ORDER, log="log").replace("controller=$!", f"{before_it_is_known}controller=$!")
    path = f"{folder}:{os.environ['PATH']}"
    return subprocess.Popen(["bash", "-c", script], cwd=folder, env={"PATH": path, "SLURM_JOB_ID": "7"})


TRAIN = "run -m agentgym.cli.main train"
FLAGS = "--plain --grace 110 --restarts 3"


@pytest.mark.parametrize("code", [0, 1, 137, 75])
def test_a_job_ends_as_its_run(code: int, tmp_path: Path) -> None:
    (tmp_path / "code").write_text(str(code))
    assert batch(tmp_path).wait() == code
    assert (tmp_path / "calls").read_text() == f"{TRAIN} recipe.yaml --name one --runs-dir runs {FLAGS}\n"


def running(folder: Path) -> subprocess.Popen[bytes]:
    (folder / "slow").touch()
    job = batch(folder)
    while not (folder / "started").exists():
        assert job.poll() is None
    return job


def test_the_schedulers_notice_reaches_the_run_whose_save_is_waited_for(tmp_path: Path) -> None:
    job = running(tmp_path)
    job.send_signal(signal.SIGUSR1)
    assert job.wait() == 75
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["notice", "scontrol requeue 7"]


def test_a_notice_that_comes_while_the_run_starts_is_handed_over_once(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    job = batch(tmp_path, "while ! [ -e started ]; do sleep 0.01; done; kill -USR1 $$; ")
    assert job.wait() == 75
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["notice", "scontrol requeue 7"]


def test_an_end_that_every_process_is_told_is_not_told_twice_and_not_followed_by_a_requeue(tmp_path: Path) -> None:
    """As by scancel, and by a requeue of SLURM's own: SIGTERM goes to the script and to the run."""
    job = running(tmp_path)
    job.terminate()
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    assert job.wait() == 75
    assert (tmp_path / "calls").read_text().splitlines()[1:] == ["notice"]


def test_a_job_that_comes_back_continues_and_one_that_saved_nothing_begins_again(tmp_path: Path) -> None:
    (tmp_path / "code").write_text("0")
    state = tmp_path / "runs" / "one" / "state.json"
    state.parent.mkdir(parents=True)
    assert batch(tmp_path).wait() == 0
    [moved] = (tmp_path / "runs").iterdir()
    assert moved.name.startswith("one-unsaved-")
    state.parent.mkdir()
    state.touch()
    assert batch(tmp_path).wait() == 0
    calls = (tmp_path / "calls").read_text().splitlines()
    resumed = f"{TRAIN} --resume runs/one --trust {FLAGS}"
    assert calls == [f"{TRAIN} recipe.yaml --name one --runs-dir runs {FLAGS}", resumed]
    assert state.exists()


def test_sbatch_gets_the_nodes_the_notice_and_what_was_given() -> None:
    script = slurm_script(replace(ORDER, gpus=8, notice_s=60), log="/logs/%j", options=["--partition=gpu"])
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    wanted = [
        "--nodes=3",
        "--gpus-per-node=8",
        "--requeue",
        "--signal=B:USR1@60",
        "--output=/logs/%j",
        "--partition=gpu",
    ]
    assert set(wanted) <= set(options) and "--grace 50" in script


@pytest.mark.parametrize(
    ("cpus", "given", "wanted"),
    [
        (0, [], ["--exclusive"]),
        (8, [], ["--cpus-per-task=8"]),
        (8, ["--cpus-per-gpu=4"], ["--cpus-per-gpu=4"]),
        (0, ["-c 4"], ["-c 4"]),
    ],
)
def test_a_task_gets_the_cpus_asked_for_else_the_whole_node(cpus: int, given: list[str], wanted: list[str]) -> None:
    script = slurm_script(replace(ORDER, cpus=cpus), log="l", options=given)
    options = [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]
    assert [one for one in options if "cpus" in one or one.startswith(("--exclusive", "-c "))] == wanted


def test_the_scripts_are_ones_of_bash() -> None:
    [_, _, job] = kubernetes_objects(ORDER, Pods(image="x"), "a: 1\n")
    pod = job["spec"]["template"]["spec"]  # type: ignore[index]
    scripts = [slurm_script(ORDER, log="l"), pod["containers"][0]["command"][2]]
    scripts.append(str(skypilot_task(ORDER, SkyTask(local_recipe="r.yaml", setup="true"))["run"]))
    for script in scripts:
        subprocess.run(["bash", "-n", "-c", script], check=True)


def test_amounts_that_are_impossible_are_refused() -> None:
    for wrong in ({"num_nodes": 0}, {"gpus": -1}, {"notice_s": 10}, {"restarts": -1}):
        with pytest.raises(UserError, match="must be at least 1"):
            replace(ORDER, **wrong)  # type: ignore[arg-type]
