"""Code that holds the event loop is named, interrupted at its limit, and never keeps a command from being stopped."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym.cli.script import run_anywhere
from agentgym.commands.stopping import Grace, Stopped, run_until_stopped
from agentgym.held_loop import LoopWatch, each, limited, waiting_for
from agentgym.rollout.waiting import Begun

PROGRAM = """
import asyncio, itertools, os, signal, sys, time
sys.path.insert(0, sys.argv[2])
import test_held_loop as held
from agentgym.commands.leaving import leave
from agentgym.commands.stopping import Stopped, run_until_stopped

async def job():
    getattr(held, sys.argv[1])()
    await asyncio.to_thread(time.sleep, 1e6)

try:
    run_until_stopped(job(), say=lambda text: None, end_s=0.2)
except Stopped as stopped:
    leave(stopped.exit_code)
"""


GIVEN_UP = """
import asyncio, time
from agentgym.commands import leaving, stopping

leaving.THREADS_S = stopping.GIVEN_UP_S = 0.2

async def job():
    try:
        async with asyncio.timeout(0.1):
            await asyncio.to_thread(time.sleep, 1e6)
    except TimeoutError:
        return "given up"

print(stopping.run_until_stopped(job(), say=print))
leaving.leave(0)
"""


def sleeps() -> None:
    time.sleep(1e6)


def loops() -> None:
    while True:
        pass


def retries() -> None:
    while True:
        with contextlib.suppress(Exception):  # what authors write around a request
            time.sleep(1e6)


def matches() -> None:
    re.match(r"(a+)+$", "a" * 60 + "b")  # holds the interpreter: no other thread runs


def swallows() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1e6)


def native() -> None:
    print("ready", flush=True)
    all(itertools.repeat(True))  # not even a signal handler runs


def leaves_a_thread() -> None:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()  # once: nobody may have to press twice


HELD = pytest.mark.parametrize("hold", [sleeps, loops, retries, matches])


def quick(lines: list[str], report_s: float = 1e6) -> LoopWatch:
    return LoopWatch(lines.append, every_s=0.02, report_s=report_s)


def line_held(hold: Callable[[], None]) -> str:
    return rf"test_held_loop\.py:\d+ in {hold.__name__}"


@HELD
def test_a_call_that_never_awaits_ends_at_its_limit_and_its_line_is_named(hold: Callable[[], None]) -> None:
    async def reply() -> None:
        hold()

    async def play() -> str:
        with pytest.raises(TimeoutError, match=line_held(hold)):
            await Begun(reply(), 0.1)
        with pytest.raises(TimeoutError, match=line_held(hold)):
            list(each(lambda: (hold() for _ in range(3)), 0.1))
        return "the loop goes on"

    with quick([]):
        assert run_until_stopped(play(), print) == "the loop goes on"


@HELD
def test_the_first_signal_stops_code_that_holds_the_loop(hold: Callable[[], None]) -> None:
    cleaned: list[str] = []

    async def job() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            hold()
        finally:
            await asyncio.sleep(0)
            cleaned.append("up")

    with quick([]), pytest.raises(Stopped) as stopped:
        run_until_stopped(job(), print)
    assert stopped.value.exit_code == 130 and cleaned == ["up"]


def test_a_stop_does_not_wait_for_each_of_the_calls_that_are_ready() -> None:
    begun: list[int] = []

    async def reply(number: int) -> None:
        begun.append(number)
        sleeps()

    async def play(number: int) -> None:
        await Begun(reply(number), 60.0)

    async def job() -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(64):
                tasks.create_task(play(number))
            os.kill(os.getpid(), signal.SIGTERM)

    with quick([]), pytest.raises(Stopped):
        run_until_stopped(job(), print)
    assert begun == [0]


def test_a_signal_that_comes_twice_at_once_is_one_request() -> None:
    lines: list[str] = []

    async def job() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    with pytest.raises(Stopped):
        run_until_stopped(job(), lines.append)
    assert lines == ["stopping (SIGTERM); again to stop without cleaning up"]  # not said after a second request


def test_a_notice_ends_code_that_holds_the_loop_when_its_time_is_over() -> None:
    async def job() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        loops()

    with quick([]), pytest.raises(Stopped) as stopped:
        run_until_stopped(job(), print, grace=Grace(seconds=0.1))
    assert stopped.value.exit_code == 143


def test_a_line_that_holds_the_loop_is_reported_before_its_limit() -> None:
    lines: list[str] = []

    async def job() -> None:
        while not lines:
            pass

    with quick(lines, report_s=0.1):
        run_until_stopped(job(), lines.append)
    assert re.match(r".*test_held_loop\.py:\d+ in job, 0 s: it holds the event loop", lines[0])


def test_what_plugin_code_waits_for_is_reported_in_place_of_its_line() -> None:
    lines: list[str] = []

    async def job() -> None:
        with waiting_for("loading words"):
            while not lines:
                pass

    with quick(lines, report_s=0.1):
        run_until_stopped(job(), lines.append)
    assert re.match(r"loading words: \d+ s so far", lines[0])


def test_our_own_code_is_never_interrupted_and_a_free_loop_neither() -> None:
    async def job() -> str:
        with limited(0.0):
            waiting = Begun(asyncio.sleep(0.2))
        await waiting
        return "done"

    lines: list[str] = []
    with quick(lines, report_s=0.1):
        assert run_until_stopped(job(), lines.append) == "done" and not lines


async def test_beside_a_running_loop_as_in_a_notebook_a_limit_holds_too() -> None:
    async def reply() -> None:
        loops()

    async def play() -> None:
        with pytest.raises(TimeoutError, match=line_held(loops)):
            await Begun(reply(), 0.1)

    await asyncio.wait_for(asyncio.to_thread(run_anywhere, play(), print), 60)


@pytest.mark.parametrize(
    ("what", "code"),
    [("swallows", 143), ("native", -signal.SIGINT), pytest.param("leaves_a_thread", 143, marks=pytest.mark.hostile)],
)
def test_the_second_signal_always_ends_the_process(what: str, code: int) -> None:
    command = [sys.executable, "-c", PROGRAM, what, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            if what == "native":
                assert process.stdout is not None and process.stdout.readline() == b"ready\n"
            for _ in range(600):  # a signal that comes before the last one was delivered is the same one
                if what == "native":
                    process.send_signal(signal.SIGINT)
                try:
                    assert process.wait(0.1) == code
                    return
                except subprocess.TimeoutExpired:
                    continue
            pytest.fail("it lives")
        finally:
            process.kill()


def test_a_thread_that_its_caller_has_given_up_does_not_keep_the_process() -> None:
    """As a step of an environment that hangs in `asyncio.to_thread`, at its limit of time."""
    done = subprocess.run([sys.executable, "-c", GIVEN_UP], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
