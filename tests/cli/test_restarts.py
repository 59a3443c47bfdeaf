"""A run that is resumed by itself, and one that saves before it goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentgym.cli.restarts import Restarts, free_path
from agentgym.commands.stopping import Grace, Stopped, run_until_stopped
from agentgym.runs.folder import RunFolder, RunStatus

CHILD = """
import json, os, pathlib, signal, sys, time
ends, words = sys.argv[1].split(","), sys.argv[2:]
log, run = pathlib.Path("words"), pathlib.Path("runs/one")
with log.open("a") as file:
    print(*words, file=file)
end = ends[len(log.read_text().splitlines()) - 1]
run.mkdir(parents=True, exist_ok=True)
status = "done" if end == "finished" else "running"
(run / "status.json").write_text(json.dumps({"status": status, "reason": "", "host": "elsewhere", "time": 0}))
if end != "early":
    (run / "state.json").write_text('{"position": 1}')
if end in ("killed", "early", "finished"):
    os.kill(os.getpid(), signal.SIGKILL)
if end == "waits":
    signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("asked").touch(), os._exit(75)))
    pathlib.Path("ready").touch()
    time.sleep(60)
sys.exit(int(end))
"""


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def make(*ends: str, at_most: int = 2) -> tuple[Restarts, list[str]]:
    lines: list[str] = []
    restarts = Restarts(
        path=Path("runs/one"),
        command=[sys.executable, "-c", CHILD, ",".join(ends)],
        words=["--env", "math"],
        flags=["--plain"],
        at_most=at_most,
        warn=lines.append,
        first_wait_s=0.0,
    )
    return restarts, lines


def starts() -> list[str]:
    return Path("words").read_text().splitlines()


def test_a_run_that_is_killed_and_one_that_fails_are_resumed() -> None:
    restarts, lines = make("killed", "1", "0")
    assert restarts.run() == 0
    assert starts() == ["--env math", "--resume runs/one --plain", "--resume runs/one --plain"]
    assert "killed by SIGKILL: restart 1 of at most 2" in lines[0] and "exit code 1: restart 2" in lines[1]
    assert lines[1] in Path("runs/one/events.log").read_text()


def test_one_that_saved_nothing_begins_again() -> None:
    restarts, _ = make("early", "0")
    assert restarts.run() == 0
    assert starts() == ["--env math", "--env math"]


def test_after_the_last_restart_the_code_is_a_shells() -> None:
    restarts, lines = make("killed", "killed", at_most=1)
    assert restarts.run() == 137 and len(lines) == 1


@pytest.mark.parametrize(("end", "code"), [("2", 2), ("75", 75), ("143", 143), ("finished", 0)])
def test_what_was_asked_for_and_the_users_mistake_are_not_repeated(end: str, code: int) -> None:
    restarts, lines = make(end)
    assert restarts.run() == code
    assert len(starts()) == 1 and lines == []


def test_a_signal_is_passed_on_and_ends_it() -> None:
    restarts, _ = make("waits", "0")

    def ask() -> None:
        while not Path("ready").exists():
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    assert restarts.run() == 75
    asking.join()
    assert len(starts()) == 1


def test_a_parent_that_is_killed_takes_the_run_with_it() -> None:
    code = "import sys\nfrom pathlib import Path\nfrom agentgym.cli.restarts import Restarts\n"
    code += "Restarts(path=Path('runs/one'), command=[sys.executable, '-c', sys.argv[1], 'waits'], words=[], flags=[], "
    code += "at_most=1, warn=print).run()"
    with subprocess.Popen([sys.executable, "-c", code, CHILD]) as parent:
        while not Path("ready").exists():
            assert parent.poll() is None
        parent.kill()
        parent.wait()
    while not Path("asked").exists():
        pass


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert free_path(Path("math-1")) == Path("math-1")
    Path("math-1").mkdir()
    assert free_path(Path("math-1")) == Path("math-1-2")


def test_a_sigterm_is_a_notice_first_and_the_end_when_its_time_is_over() -> None:
    async def leaves(grace: Grace) -> str:
        os.kill(os.getpid(), signal.SIGTERM)
        await grace.noticed.wait()
        return "saved"

    lines: list[str] = []
    long = Grace(seconds=600)
    assert run_until_stopped(leaves(long), lines.append, grace=long) == "saved"
    assert "within 600 s" in lines[0]

    async def stays() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(Stopped) as stopped:
        run_until_stopped(stays(), lines.append, grace=Grace(seconds=0.01))
    assert stopped.value.exit_code == 143

    async def impatient(grace: Grace) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(os.getpid(), number)
            await asyncio.sleep(0)
        await asyncio.Event().wait()

    with pytest.raises(Stopped):
        run_until_stopped(impatient(long := Grace(seconds=600)), lines.append, grace=long)


def test_a_run_that_saved_in_its_grace_says_so_by_its_exit_code(cli) -> None:
    async def work(recipe, folder, reporter) -> None:
        folder.save_state({"position": 3})
        os.kill(os.getpid(), signal.SIGTERM)
        await cli.jobs.notice.wait()

    cli.jobs.work, cli.jobs.stopped = work, "preempted; saved after step 3"
    end = cli.train("--name", "one", "--grace", "600")
    assert end.code == 75, end.err
    status = RunFolder.open("runs/one").status()
    assert status.status is RunStatus.INTERRUPTED and status.reason == "preempted; saved after step 3"
    assert "agentgym train --resume runs/one" in end.out


@pytest.mark.parametrize(
    ("words", "says"), [(["--restarts", "-1"], "--restarts is -1"), (["--grace", "0"], "--grace is 0")]
)
def test_numbers_that_mean_nothing_are_refused(cli, words: list[str], says: str) -> None:
    end = cli.train(*words)
    assert end.code == 2 and says in end.err and not Path("runs").exists()


def test_the_command_line_becomes_a_run_of_that_name_and_later_its_resume(cli) -> None:
    words = ["--loop.steps", "5", "--restarts", "3", "--grace=60", "--plain"]
    assert cli.train(*words).code == 75
    [restarts] = cli.jobs.restarts
    name = restarts.path.name
    rest = [*restarts.words]
    assert restarts.at_most == 3 and rest[-2:] == ["--name", name] and "--restarts" not in rest and "3" not in rest
    assert {"--env", "counting", "--loop.steps", "5", "--grace=60"} <= set(rest)
    assert restarts.flags == ["--plain", "--grace", "60"] and restarts.command[-1] == "train"
    assert not Path("runs").exists() and not cli.jobs.trained
    assert cli.train("--name", "one").code == 0
    assert cli("train", "--resume", "runs/one", "--restarts=2", "--loop.steps", "90").code == 75
    assert cli.jobs.restarts[1].words == ["--resume", "runs/one", "--loop.steps", "90"]
    assert cli.jobs.restarts[1].path == Path("runs/one")
