"""`agentgym sandbox`: each action, on sandboxes of our own."""

from __future__ import annotations

import base64
import io
import json
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from agentgym.cli.jobs import JobShell
from agentgym.cli.main import main
from agentgym.sandbox import Capabilities, LimitHit, RunResult, RunStatus
from agentgym_sandboxes.audit.findings import Category, Outcome, Report, TrialResult
from agentgym_sandboxes.commands import verify
from agentgym_sandboxes.commands.program import as_mapping, exit_text, limit_text, visible


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def program(cli) -> str:
    Path("p.py").write_text("print(1)")
    return "p.py"


# run


def test_a_file_runs_in_a_sandbox_and_its_end_is_the_exit_code(cli, program: str) -> None:
    end = cli("sandbox", "run", program, "--sandbox", "echo", "--stdin", "!")
    assert end.code == 0 and end.out == "print(1)!" and "ok, exit code 0" in end.err
    Path(program).write_text("raise")
    end = cli("sandbox", "run", program, "--sandbox", "echo", "--json")
    assert end.code == 1 and json.loads(end.out)["status"] == "error"


def test_a_limit_that_was_hit_is_shown_with_what_was_used_of_it(cli, program: str) -> None:
    words = ("--sandbox", "steady", "--sandbox.options.limit", "true", "--wall-s", "3")
    end = cli("sandbox", "run", program, *words)
    assert end.code == 1 and "timeout, wall time: used 3.0 of 3 s" in end.err
    end = cli("sandbox", "run", program, *words, "--json")
    assert json.loads(end.out)["limit"] == {"resource": "wall_s", "used": 3.04, "allowed": 3.0}


@pytest.mark.parametrize(
    ("hit", "text"),
    [
        (LimitHit(resource="memory_mib", used=512, allowed=512), "memory: used 512.0 of 512 MiB"),
        (LimitHit(resource="processes", used=32, allowed=32), "processes and threads: used 32 of 32"),
        (LimitHit(resource="output_bytes", used=8388608, allowed=8388608), "output: used 8388608 of 8388608 bytes"),
        (LimitHit(resource="sockets", used=2, allowed=1), "sockets: used 2 of 1"),
        (
            LimitHit(resource="memory_mib", used=16.6, allowed=512),
            "memory: used 16.6 of 512 MiB when it was refused more",
        ),
    ],
)
def test_every_limit_is_shown_with_its_unit(hit: LimitHit, text: str) -> None:
    assert limit_text(hit) == text


@pytest.mark.parametrize(
    ("code", "text"), [(3, "exit code 3"), (-11, "killed by SIGSEGV"), (-99, "killed by signal 99")]
)
def test_a_signal_that_ended_a_program_is_named(code: int, text: str) -> None:
    assert exit_text(code) == text


@pytest.mark.parametrize(("data", "text", "kept"), [(b"\xff", "\ufffd", b"\xff"), (b"caf\xc3\xa9", "caf\u00e9", None)])
def test_json_holds_bytes_that_are_not_text(data: bytes, text: str, kept: bytes | None) -> None:
    result = RunResult(status=RunStatus.OK, exit_code=0, stdout=text, stderr="", stdout_bytes=data)
    found = as_mapping(result, "echo", [])
    assert found["stderr_base64"] is None
    assert found["stdout_base64"] == (base64.b64encode(kept).decode() if kept else None)


def test_a_program_is_utf_8_wherever_it_comes_from(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for data, code, printed in ((b"\xef\xbb\xbfok\r\n", 0, "ok\r\n"), (b"caf\xe9", 2, "")):
        Path("p.py").write_bytes(data)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        for file in ("p.py", "-"):
            end = cli("sandbox", "run", file, "--sandbox", "echo")
            assert (end.code, end.out) == (code, printed), end.err


def test_a_program_with_files_prints_no_more_than_without(cli, program: str) -> None:
    """A session shows the value of a last expression."""
    words = ("--sandbox", "steady", "--sandbox.options.shows_code", "true", "--files-in", program)
    end = cli("sandbox", "run", program, *words, "--json")
    assert json.loads(end.out)["stdout"] == "print(1)\npass\n"


def test_what_a_sandbox_prints_cannot_control_a_terminal(cli, program: str) -> None:
    out = Terminal()
    words = ["sandbox", "run", program, "--sandbox", "steady", "--sandbox.options.limit", "true"]
    main(words, JobShell(out=out, err=io.StringIO(), jobs=lambda: cli.jobs, plugins=cli.plugins))
    assert out.getvalue() == "\\x1b[2J\n"
    assert visible("a\tb\n\x07\r\x9b\u202e") == "a\tb\n\\x07\\r\\x9b\\u202e"


def test_files_go_into_a_session_and_come_out_of_it(cli, program: str) -> None:
    Path("data").mkdir()
    Path("data/a.csv").write_text("1,2")
    words = ("--files-in", "data", program, "--network", "pypi.org", "--files-out", "results")
    end = cli("sandbox", "run", program, "--sandbox", "steady", *words)
    assert end.code == 0, end.err
    found = {path.name: path.read_text() for path in Path("results").iterdir()}
    assert found == {"network.txt": "pypi.org", "a.csv": "1,2", "p.py": "print(1)"}
    end = cli("sandbox", "run", program, "--sandbox", "steady", *words)
    assert end.code == 2 and "'results' is not empty" in end.err


def test_a_file_that_leaves_the_folder_is_not_written(cli, program: str, tmp_path: Path) -> None:
    words = ("--sandbox", "steady", "--sandbox.options.sly", "true", "--files-out", "deep/results")
    end = cli("sandbox", "run", program, *words)
    assert end.code != 0 and "leaves the folder" in end.err
    assert not list(tmp_path.rglob("sly"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["run"], "required: FILE"),
        (["run", "gone.py", "--sandbox", "echo"], "cannot read the program 'gone.py'"),
        (["run", "p.py", "--sandbox", "echo", "--sandbox.options.broken", "true"], "no engine answers"),
        (["run", "p.py", "--sandbox", "echo", "--sandbox.options.broken_when_used", "true"], "no module to preload"),
        (["run", "p.py"], "name one with --sandbox: "),
        (["run", "p.py", "--sandbox", "echo", "--wall-s", "0"], "--wall-s is 0.0; give more than 0"),
        (["run", "p.py", "--sandbox", "echo", "--wall-s", "inf"], "--wall-s is inf; give more than 0"),
        (["run", "p.py", "--sandbox", "echo", "--processes", "99999999"], "limit processes is 99999999"),
        (["run", "latin.py", "--sandbox", "echo"], "is no UTF-8 text"),
        (["clean", "--sandbox", "image", "--sandbox.options.broken", "true"], "no engine answers"),
        (["build", "--sandbox", "image", "--sandbox.options.broken", "true"], "no engine answers"),
        (["run", "p.py", "--sandbox", "echo", "--files-in", "p.py"], "'echo' has no sessions"),
        (["run", "p.py", "--sandbox", "steady", "--files-in", "p.py", "p.py"], "names 'p.py' twice"),
        (["run", "p.py", "--stdn", "x"], "Did you mean '--stdin'?"),
        (["run", "p.py", "--sandbox", "echo", "--loop.steps", "3"], "only --sandbox.options"),
        (["build", "--sandbox", "echo"], "needs no image"),
        (["build", "--sandbox", "imag"], "Did you mean 'image'?"),
        (["build", "--sandbox", "image", "--packages"], "expected at least one argument"),
        (
            ["build", "--sandbox", "image", "--packages", "a", "--sandbox.options.packages", "[b]"],
            "are one setting; give one of the two",
        ),
        (["clean", "--sandbox", "image", "--volumes"], "sandbox 'image' has no volumes; leave --volumes out"),
        (["clean", "x"], "unknown argument 'x'"),
        (["bench", "--sandbox", "steady", "--at-once", "0"], "--at-once must be at least 1"),
        (["biuld"], "invalid choice"),
        ([], "required: ACTION"),
    ],
)
def test_wrong_uses_of_sandboxes_are_refused(cli, program: str, words, expected) -> None:
    Path("latin.py").write_bytes(b"print('caf\xe9')")
    end = cli("sandbox", *words)
    assert end.code == 2 and expected in end.err and "traceback" not in end.err


# build, clean


def test_an_image_is_built_and_what_dead_runs_left_is_named_and_removed(cli) -> None:
    end = cli("sandbox", "build", "--sandbox", "image", "--pull", "x@sha256:1")
    assert end.code == 0 and "image sha256:x@sha256:1" in end.out and "building" in end.err
    end = cli("sandbox", "build", "--sandbox", "image", "--dry-run")
    assert end.code == 0 and "nothing was changed" in end.out and "building" not in end.err
    assert "ready now" in end.out and "an echo" in end.out
    words = ("sandbox", "build", "--sandbox", "image", "--dry-run", "--json")
    assert json.loads(cli(*words).out)["available"]
    found = json.loads(cli(*words, "--sandbox.options.broken", "true").out)
    assert not found["available"] and "no engine answers" in found["detail"]
    end = cli("sandbox", "clean", "--sandbox", "image")
    assert "removed container 0123" in end.out and "removed 3 in all" in end.out
    found = json.loads(cli("sandbox", "clean", "--sandbox", "image", "--json").out)
    assert found["removed"] == 3 and "0123" in found["what"][0]


def test_packages_are_named_by_an_option_of_the_command_or_of_the_sandbox(cli) -> None:
    words = ("sandbox", "build", "--sandbox", "image")
    end = cli(*words, "--packages", "numpy==2.3.1", "scikit-learn>=1", "zope.interface===5")
    assert end.code == 0 and "building numpy==2.3.1 scikit-learn>=1 zope.interface===5\n" in end.err
    end = cli(*words, "--sandbox.options.packages=[numpy==2.3.1, sympy]")
    assert end.code == 0 and "building numpy==2.3.1 sympy\n" in end.err
    end = cli(*words, "--packages", "numpy==2.3.1", "--dry-run")
    assert "take the base image, or build" in end.out and "fetch numpy==2.3.1 with pip" in end.out


# doctor


def test_doctor_shows_what_each_sandbox_enforces(cli) -> None:
    end = cli("sandbox", "doctor")
    assert end.code == 0 and "echo: available" in end.out
    lines = {line.split("  ")[0]: line.split()[-3:] for line in end.out.splitlines() if "yes" in line or "no" in line}
    assert lines["sessions"] == ["no", "no", "yes"] and lines["isolated"] == ["yes", "no", "yes"]
    assert "Runs that execute code can use: echo, image, steady." in end.out
    found = {one["sandbox"]: one for one in json.loads(cli("sandbox", "doctor", "--json").out)}
    assert found["steady"]["sessions"] and found["steady"]["full"] and not found["echo"]["disk_limit"]


def test_a_machine_without_any_sandbox_is_reported(cli) -> None:
    end = cli("sandbox", "doctor", "--sandbox", "echo", "--sandbox.options.broken", "true")
    assert end.code == 1 and "not available" in end.out and "start the engine" in end.out


@pytest.mark.parametrize("columns", [24, 60, 120])
def test_doctor_fits_the_terminal(cli, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    assert main(["sandbox", "doctor"], JobShell(out=out, err=out, jobs=lambda: cli.jobs, plugins=cli.plugins)) == 0
    table = [line for line in out.getvalue().splitlines() if line.startswith(("enforced", "sessions"))]
    assert len(table) == (8 if columns == 24 else 2)  # one below the other where they are too wide
    assert max(map(len, table)) <= max(columns, 26)


def test_without_a_terminal_there_is_no_colour(cli, program: str) -> None:
    for words in (["doctor"], ["run", program, "--sandbox", "steady"], ["bench", "--help"]):
        end = cli("sandbox", *words)
        assert "\x1b" not in end.out + end.err


# bench


def test_bench_prints_a_table_and_json(cli) -> None:
    words = ("sandbox", "bench", "--sandbox", "steady", "--quick", "--episodes", "4")
    end = cli(*words)
    assert end.code == 0, end.err
    for name in ("container start", "call", "grade of 10 asserts", "session write + read", "descriptors"):
        assert f"\n{name} " in end.out, name
    found = json.loads(cli(*words, "--json").out)
    assert found["growth"]["episodes"] == 4 and found["timings"][0]["name"] == "start"


def test_bench_says_what_it_would_measure(cli) -> None:
    end = cli("sandbox", "bench", "--sandbox", "steady", "--dry-run", "--at-once", "3")
    assert end.code == 0 and "800 times 3 at once" in end.out and end.err == ""
    end = cli("sandbox", "bench", "--sandbox", "steady", "--dry-run", "--json")
    assert json.loads(end.out)["plan"]["timing"]["at_once"] == 8


# verify


def result(name: str, outcome: Outcome, category: Category = Category.STATE) -> TrialResult:
    return TrialResult(name=name, category=category, tries="it tries", outcome=outcome, detail="a detail", wall_s=0.1)


def report(*trials: TrialResult) -> Report:
    able = dict.fromkeys((field.name for field in fields(Capabilities)), True) | {"backend": "b", "detail": "d"}
    return Report(capabilities=Capabilities(**able), trials=trials, wall_s=3.0)


def test_trials_are_listed_and_run_none(cli) -> None:
    end = cli("sandbox", "verify", "--list")
    assert end.code == 0 and "outliving" in end.out and end.out.rstrip().endswith("trials")
    names = [one["name"] for one in json.loads(cli("sandbox", "verify", "--list", "--json").out)]
    assert len(names) == len(set(names)) >= 80
    some = json.loads(cli("sandbox", "verify", "--list", "--json", "--only", "state", names[0]).out)
    assert {one["category"] for one in some if one["name"] != names[0]} == {"state"}


@pytest.mark.parametrize("columns", [60, 120])
def test_the_list_fits_the_terminal(cli, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    words = ["sandbox", "verify", "--list"]
    assert main(words, JobShell(out=out, err=out, jobs=lambda: cli.jobs, plugins=cli.plugins)) == 0
    assert max(map(len, out.getvalue().splitlines())) <= columns


def test_help_fits_the_terminal(cli, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for words in ([], *([name] for name in ("doctor", "build", "run", "bench", "verify", "clean"))):
        cli("sandbox", *words, "--help")
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


def test_what_gives_no_evidence_fails(cli) -> None:
    trial = json.loads(cli("sandbox", "verify", "--list", "--json", "--only", "surface").out)[0]["name"]
    end = cli("sandbox", "verify", "--sandbox", "steady", "--only", trial)
    assert end.code == 1 and "steady: it does not hold (0 of 1 trial contained" in end.out and trial in end.out
    found = json.loads(cli("sandbox", "verify", "--sandbox", "steady", "--only", trial, "--json").out)
    assert not found["holds"] and found["findings"][0]["where"] == trial == found["trials"][0]["name"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--only", "no-such*"], "no trial matches 'no-such*'"),
        (["--sandbox", "plain", "--only", "state"], "'plain' does not promise isolation"),
    ],
)
def test_verify_refuses_what_can_not_be_verified(cli, words, expected) -> None:
    end = cli("sandbox", "verify", *words)
    assert end.code == 2 and expected in end.err


def test_the_table_counts_by_category_and_shows_all_that_was_not_contained(cli) -> None:
    out = io.StringIO()
    shell = JobShell(out=out, err=io.StringIO(), jobs=lambda: cli.jobs, plugins=cli.plugins)
    some = [result("one", Outcome.CONTAINED), result("two", Outcome.ESCAPED, Category.SURFACE)]
    verify.show(report(*some, result("three", Outcome.NOT_CLAIMED)), shell)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert lines[1] == "category contained escaped not claimed unsupported broken"
    assert {"surface 0 1 0 0 0", "state 1 0 1 0 0", "all 1 1 1 0 0", "problem escaped [two] it tries"} <= set(lines)
    assert lines[lines.index("a detail:") + 1] == "three" and "[one]" not in out.getvalue()
    assert lines[-1] == "b: it does not hold (1 of 3 trials contained, 3 s)"
    verify.show(report(result("three", Outcome.NOT_CLAIMED, Category.HANDED_BACK)), shell)
    lines = [" ".join(line.split()) for line in out.getvalue().splitlines()]
    assert "handed_back 0 0 1 0 0" in lines  # as --only takes it
    assert lines[-1].startswith("b: nothing got through, but nothing was shown to hold (0 of 1 trial")


def test_progress_is_one_line_a_category_and_is_rewritten_in_a_terminal(cli) -> None:
    results = [result("a", Outcome.CONTAINED), result("b", Outcome.CONTAINED), result("c", Outcome.ESCAPED)]
    for err, expected in (
        (io.StringIO(), "state  2 contained, 1 escaped; 3 of 3 done\n"),
        (Terminal(), "\r\x1b[Kstate  1 contained, 2 to go; 1 of 3 done"
                     "\r\x1b[Kstate  2 contained, 1 to go; 2 of 3 done"
                     "\r\x1b[Kstate  2 contained, 1 escaped; 3 of 3 done\n"),
    ):  # fmt: skip
        progress = verify.Progress(results, JobShell(out=err, err=err, jobs=lambda: cli.jobs, plugins=cli.plugins))
        for one in results:
            progress.add(one)
        progress.close()
        assert err.getvalue() == expected
