"""However a program ends, nothing of it is left: no process, no shared memory, no noise on the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from agentgym.actors.owned_folder import sweep
from agentgym.weights.shared_memory import SharedMemoryStore

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("program.py")
ABORTED = (-signal.SIGABRT, "FATAL: exception not rethrown\n")
"""Once in some hundreds of ends Monarch's threads do this to Python before 3.14: agentgym/commands/leaving.py."""


class Program:
    """The running program, after its first answer from a generator."""

    def __init__(self, ending: str, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, PROGRAM, ending, folder / "logs"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        words = self.process.stdout.readline().split()
        assert words[:1] == ["ready"], self.process.communicate()[1]
        self.folder = Path(words[1])
        assert words[2:]
        self.children: list[psutil.Process] = []
        for pid in words[2:]:
            with contextlib.suppress(psutil.NoSuchProcess):  # a careless one may have ended with all of it already
                self.children.append(psutil.Process(int(pid)))

    def finish(self) -> tuple[int, str]:
        """Exit code and what it wrote to stderr."""
        _, errors = self.process.communicate(timeout=120)
        return self.process.returncode, errors

    def alive(self) -> list[psutil.Process]:
        return [c for c in self.children if c.is_running() and c.status() != psutil.STATUS_ZOMBIE]

    def gone_soon(self) -> bool:
        """Soon on a slow machine; orphans that nothing ends are still there after minutes."""
        deadline = time.monotonic() + 30
        while self.alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.alive()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[object]:
    programs: list[Program] = []

    def begin(ending: str) -> Program:
        programs.append(Program(ending, tmp_path))
        return programs[-1]

    yield begin
    for program in programs:
        with program.process:  # closes the pipes, and waits
            program.process.kill()


def test_an_ordinary_end_is_silent_and_leaves_nothing(start) -> None:
    program = start("return")
    ended = program.finish()
    if ended == ABORTED:
        program = start("return")
        ended = program.finish()
    assert ended == (0, "")
    assert program.alive() == [] and not program.folder.exists()


def test_an_end_that_forgets_to_close_a_service_leaves_nothing_either(start) -> None:
    program = start("careless")
    code, errors = program.finish()
    assert code == 0 and "Traceback" not in errors, errors
    assert program.gone_soon() and not program.folder.exists()


def test_an_error_shows_itself_alone(start) -> None:
    program = start("raise")
    code, errors = program.finish()
    assert code == 1 and errors.count("Traceback") == 1 and errors.rstrip().endswith("RuntimeError: as asked")
    assert program.alive() == [] and not program.folder.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_closes_everything(start, number: signal.Signals) -> None:
    program = start("wait")
    # As a terminal's Ctrl-C does: to every process of the group.
    for process in (program.process, *program.children) if number is signal.SIGINT else (program.process,):
        process.send_signal(number)
    code, errors = program.finish()
    assert (code, errors) == (128 + number, "")
    assert program.alive() == [] and not program.folder.exists()


@pytest.mark.hostile
def test_children_die_with_a_killed_parent_and_the_next_run_sweeps_its_weights(start) -> None:
    program = start("wait")
    time.sleep(12)  # the thread that started the children may be gone by then; they must live on
    assert len(program.alive()) == 2
    program.process.kill()
    program.process.wait()
    assert program.gone_soon()
    sweep()
    assert not program.folder.exists()


def test_a_new_store_sweeps_by_itself(start) -> None:
    program = start("wait")
    program.process.kill()
    program.process.wait()
    store = SharedMemoryStore("next")
    assert not program.folder.exists() and store.folder.is_dir()
    asyncio.run(store.close())
