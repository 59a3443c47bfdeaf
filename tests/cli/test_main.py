"""The whole program as a process: its help, what it imports, how it ends."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from agentgym.cli.catalogue import OWN, RUNS, groups
from agentgym.runs.folder import RunFolder, RunStatus


def program(*words: str, **more: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentgym.cli.main", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **more,
    )


@pytest.mark.parametrize("words", ["--help", "train --help", "train --env math --dry-run", "plugins", "envs"])
def test_no_command_but_a_job_imports_anything_heavy(words: str, tmp_path: Path) -> None:
    script = f"""
        import sys
        from agentgym.cli.main import main
        main({words.split()!r})
        heavy = {{"torch", "monarch", "vllm", "docker", "transformers", "matplotlib", "numpy", "rich"}}
        sys.exit(f"imported: {{sorted(heavy & set(sys.modules))}}" if heavy & set(sys.modules) else 0)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [*OWN, "sandbox"])
def test_every_help_has_examples_of_its_own_command(cli, command: str, capsys) -> None:
    assert cli(*command.split(), "--help").code == 0
    text = capsys.readouterr().out
    examples = text.partition("examples:\n")[2]
    assert f"agentgym {command}" in examples and "usage: agentgym" in text


def test_the_help_names_all_commands_and_exit_codes(capsys, cli) -> None:
    assert cli("--help").code == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for commands in groups().values() for command in commands)
    assert not any(f"\n  {name} " in text for name in RUNS)
    assert "130" in text and "143" in text
    assert cli().code == 0 and cli("help", "train").code == 0


def test_an_unknown_command_names_the_nearest(cli) -> None:
    end = cli("trian")
    assert end.code == 2 and "Did you mean 'train'?" in end.err
    assert "Did you mean 'runs episodes'?" in cli("episods", "runs/one").err
    assert "Did you mean 'episodes'?" in cli("runs", "episods").err and "agentgym status" in cli("runs", "status").err
    end = cli("--verison")
    assert end.code == 2 and "Did you mean '--version'?" in end.err


@pytest.mark.parametrize("name", [name for name in RUNS if name != "list"])
def test_what_moved_below_runs_can_still_be_called_by_its_old_name_with_a_note(cli, name: str) -> None:
    now, before = cli("runs", name, "nowhere"), cli(name, "nowhere")
    assert now.code == before.code == 2
    note = f"note: `agentgym {name}` is now `agentgym runs {name}`; the old name goes in agentgym 0.3\n"
    assert before.err == note + now.err


def test_a_command_that_was_built_for_a_newer_version_is_refused(cli, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "kite-1.2.dist-info").mkdir()
    (tmp_path / "kite-1.2.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: kite\nVersion: 1.2\n")
    (tmp_path / "kite-1.2.dist-info" / "entry_points.txt").write_text("[agentgym.commands]\nkite = kite_command\n")
    (tmp_path / "kite_command.py").write_text('agentgym_api = "9.0"\n')
    monkeypatch.syspath_prepend(tmp_path)
    end = cli("kite")
    assert end.code == 2 and "the command 'kite' of kite: built for agentgym 9.0, this is 0.1: upgrade" in end.err


def test_a_mistake_ends_the_process_with_2_and_one_line(tmp_path: Path) -> None:
    done = program("train", "--env", "mathh", cwd=tmp_path)
    assert done.returncode == 2 and "Did you mean 'math'?" in done.stderr and "Traceback" not in done.stderr


def test_an_unexpected_error_keeps_its_traceback_in_a_file(cli, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    import tempfile

    monkeypatch.setattr(tempfile, "tempdir", None)

    def broken(disabled=()):
        raise RuntimeError("a bug of ours")

    cli.plugins = broken
    end = cli("plugins")
    assert end.code == 1 and "agentgym: RuntimeError: a bug of ours" in end.err
    (kept,) = tmp_path.glob("agentgym-traceback-*.txt")
    assert str(kept) in end.err and "in broken" in kept.read_text()


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    done = subprocess.run(
        f"{sys.executable} -m agentgym.cli.main train --help-recipe | head -1; echo ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""


JOB = """
import asyncio, sys
from agentgym.cli.main import main
from agentgym.cli.jobs import JobShell
from agentgym.hooks import PluginRegistry

class Jobs:
    async def train(self, recipe, folder, reporter, **settings):
        try:
            print("ready", flush=True)
            await asyncio.sleep(60)
        finally:
            (folder.path / "cleaned").touch()

shell = JobShell(out=sys.stdout, err=sys.stderr, jobs=Jobs, plugins=PluginRegistry.discover)
sys.exit(main(["train", "--env", "math", "--name", "one", "--set", "logging.sinks=[]"], shell))
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_process_in_order_and_the_code_says_which(tmp_path, number: int, code: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", JOB], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        while "ready" not in process.stdout.readline():
            assert process.poll() is None
        os.kill(process.pid, number)
        assert process.wait(timeout=30) == code
        assert "Traceback" not in process.stderr.read()
    assert (tmp_path / "runs/one/cleaned").exists()


def test_a_terminal_that_is_closed_ends_the_process_in_order(tmp_path: Path) -> None:
    """The kernel sends SIGHUP, and everything that is printed from then on fails."""
    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n" + JOB],
        cwd=tmp_path,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        shown = b""
        while b"ready" not in shown:
            shown += os.read(controller, 4096)
        os.close(controller)
        assert process.wait(timeout=50) == 129
    assert (tmp_path / "runs/one/cleaned").exists()
    status = RunFolder.open(tmp_path / "runs/one").status()
    assert (status.status, status.reason) == (RunStatus.INTERRUPTED, "interrupted by SIGHUP")
