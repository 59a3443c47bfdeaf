"""What is printed may go nowhere, or to few characters: a run goes on, and what only prints ends as Unix tools do."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from view_runs import write_run

from agentgym.cli.main import main
from agentgym.commands.output import Output, OutputGone, encodable
from agentgym.errors import InfraError
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import JsonReporter, PlainReporter

RUN = """
import sys
sys.path[:0] = [{here!r}, {tests!r}]
from agentgym.cli import main as program
from conftest import FakeJobs, fake_plugins
from agentgym.cli import jobs
from agentgym.cli.jobs import JobShell

async def work(recipe, folder, reporter):
    print("what an environment prints")
    for number in range(2000):
        reporter.note("something to be said about this run " * 8)

def shell(**streams):
    return JobShell(**{{**streams, "jobs": lambda: FakeJobs(work), "plugins": fake_plugins}})

jobs.JobShell = shell
program.script()
"""
HERE = Path(__file__).parent
TRAIN = (sys.executable, "-c", RUN.format(tests=str(HERE.parent), here=str(HERE)), "train", "--env", "counting")
TRAIN = (*TRAIN, "--name", "one", "--set", "logging.sinks=[]")
EPISODES = (sys.executable, "-m", "agentgym.cli.main", "runs", "episodes", "runs/one")
OUTPUTS = {  # how a shell directs the output, and which words it may lead to on standard error
    "a closed pipe": ("| head -c 40", ""),
    "both in a closed pipe": ("2>&1 | true", ""),
    "closed": (">&-", ""),
    "all closed": ("<&- >&- 2>&-", ""),
    "a full disk": ("> /dev/full", "No space left on device"),
    "a full disk for both": ("> /dev/full 2>&1", ""),
    "ascii": ("> said", ""),
}


def directed(words: tuple[str, ...], how: str, folder: Path) -> tuple[int, str]:
    """The exit code of a program whose output is directed so, and what it printed to standard error."""
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"} if how == "> said" else None
    done = subprocess.run(
        ["bash", "-c", f'"$@" {how}; exit ${{PIPESTATUS[0]}}', "-", *words],
        cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=60, check=False, env=environ,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_run_goes_on_whatever_becomes_of_its_output(output: str, tmp_path: Path) -> None:
    how, words = OUTPUTS[output]
    code, errors = directed(TRAIN, how, tmp_path)
    assert (code, words in errors, "Error" in errors) == (0, True, False), errors
    folder = RunFolder.open(tmp_path / "runs" / "one")
    assert folder.status().status is RunStatus.DONE
    said = [path for path in folder.path.rglob("*") if path.is_file() and b"something to be said" in path.read_bytes()]
    assert said == [], "a file of the run has got the number of a descriptor that was closed"


HELD = """
import subprocess
from agentgym.commands.output import hold_descriptors

hold_descriptors()
raise SystemExit(subprocess.call(["sh", "-c", ": <&0; : >&1; : >&2"]))
"""


def test_a_child_has_the_descriptors_that_were_closed() -> None:
    assert directed((sys.executable, "-c", HELD), OUTPUTS["all closed"][0], Path.cwd()) == (0, "")


LOOP = """
import pathlib
from agentgym.cli.loops import run_loop

async def loop(recipe):
    for number in range(2000):
        print("something of one's own" * 9)
    pathlib.Path("done").touch()

raise SystemExit(run_loop(loop, ["--env", "math"]))
"""


@pytest.mark.parametrize("output", ["a closed pipe", "closed", "a full disk"])
def test_a_loop_of_ones_own_goes_on_with_what_it_prints_itself(output: str, tmp_path: Path) -> None:
    code, errors = directed((sys.executable, "-c", LOOP), OUTPUTS[output][0], tmp_path)
    assert code == 0 and (tmp_path / "done").exists(), errors


@pytest.mark.parametrize("output", OUTPUTS)
def test_what_only_prints_ends_quietly_with_its_reader_and_names_a_full_disk(output: str, tmp_path: Path) -> None:
    write_run(tmp_path / "runs", "one")
    how, words = OUTPUTS[output]
    code, errors = directed(EPISODES, how, tmp_path)
    assert code == ("/dev/full" in how) and words in errors and "Traceback" not in errors
    assert errors == "" or "full" in how


TEXT = "≤ 🎲 \ud83d ▁▂▃█ ┤ é"


@pytest.mark.parametrize("command", ["episodes one", "episodes one --show 1", "curve one", "status one", "audit one",
                                     "runs --runs-dir .", "envs list", "envs show counting", "--help"])  # fmt: skip
def test_every_encoding_is_enough_for_every_command(command: str, cli, tmp_path: Path, capsys) -> None:
    write_run(tmp_path, "one")
    for encoding in ("ascii", "cp1252"):
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
        assert main(command.split(), cli.shell(out, err)) in (0, 1)
        assert "Encode" not in err.buffer.getvalue().decode(encoding)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_what_an_encoding_lacks_is_escaped_or_drawn_with_what_it_has(encoding: str) -> None:
    written = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    out = Output(written)
    print(TEXT, file=out, flush=True)
    PlainReporter(written).note(TEXT)
    JsonReporter(written).note(TEXT)
    shown = written.buffer.getvalue().decode(encoding).splitlines()
    assert shown[0] == shown[1] and "\\ud83d" in shown[0]
    assert ("≤ 🎲" in shown[0]) == (encoding == "utf-8")
    assert ("_.:# | " in shown[0]) == (encoding != "utf-8")
    curve = "1.0 ┤⡠\u2800"
    assert encodable(curve, encoding) == (curve if encoding == "utf-8" else "1.0 |* ")


class Failing(io.StringIO):
    """Fails so often, and then works."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__()
        self.error, self.times = error, times

    def write(self, text: str) -> int:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return super().write(text)


def test_a_disk_that_has_room_again_gets_what_comes_then(capsys) -> None:
    failing = Failing(OSError(28, "No space left on device"), 2)
    out = Output(failing, needed=False)
    for text in "abc":
        out.write(text)
    assert failing.getvalue() == "c"
    assert capsys.readouterr().err.count("No space left on device; the work goes on") == 1
    with pytest.raises(InfraError, match="No space left on device"):
        Output(Failing(OSError(28, "No space left on device"), 1)).write("a")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "Input/output error"), ValueError()])
def test_an_output_that_is_gone_ends_what_needs_it_once(error: Exception) -> None:
    failing = Failing(error, 1)
    out = Output(failing)
    with pytest.raises(OutputGone):
        out.write("a")
    out.write("b")
    assert failing.getvalue() == ""


def test_a_broken_pipe_of_something_else_is_a_failure(cli) -> None:
    def broken(disabled=()):
        raise BrokenPipeError(32, "Broken pipe")

    cli.plugins = broken
    assert cli("plugins").code == 1
