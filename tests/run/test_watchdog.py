"""Who waits for whom, and who is silent."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from agentgym.actors.launchers import CHILD_MODULE
from agentgym.actors.vitals import Vitals
from agentgym.rollout.activity import Activity
from agentgym.run.watchdog import watched
from agentgym.runs.liveness import Vital, liveness, read_pulses, report

IDLE, BUSY = Vital("generator0", 11, "using no CPU"), Vital("generator1", 12, "")
STOPPED = Vital("trainer", 13, "stopped by a signal")


def test_the_report_names_who_waits_and_the_silent_one_of_those_that_are_waited_for() -> None:
    assert report({"train": [62.0]}, [IDLE, STOPPED], 60) == (
        "nothing has ended for 1m00s: the loop waits for trainer (1 x 1m02s). "
        "Silent: trainer, process 13, is stopped by a signal"
    )
    both = report({"generate": [61.0, 90.0], "sandbox": [5.0]}, [IDLE, BUSY, STOPPED], 60)
    assert "episodes wait for generator (2 x 1m30s); episodes wait for sandbox (1 x 5s)" in both
    assert both.endswith("Silent: generator0, process 11, is using no CPU")
    assert report({"generate": [61.0]}, [BUSY], 60) == (
        "still working: nothing has ended for 1m00s: episodes wait for generator (1 x 1m01s), and all of these "
        "processes compute"
    )
    assert "nothing is in flight. Silent: trainer, process 13" in report({}, [STOPPED], 60)


async def test_silence_is_logged_with_the_process_that_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    sleep = "import time; print(flush=True); time.sleep(600)"
    command = [sys.executable, "-c", sleep, CHILD_MODULE, "--name", "trainer#3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None and process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            activity = Activity()
            with activity.doing("train"):
                async with asyncio.timeout(60), watched(activity, Vitals().read, quiet_s=0.1):
                    while not caplog.messages:
                        await asyncio.sleep(0.02)
            assert f"Silent: trainer, process {process.pid}, is stopped by a signal" in caplog.messages[0]
        finally:
            process.kill()


async def test_of_starts_nothing_is_said_before_four_times_as_long(caplog: pytest.LogCaptureFixture) -> None:
    activity, silences_s = Activity(), [0.0]

    def read() -> list[Vital]:
        silences_s.append(activity.silence_s())
        return [IDLE]

    with activity.doing("start"):
        async with asyncio.timeout(60), watched(activity, read, quiet_s=0.3):
            while not caplog.messages:
                await asyncio.sleep(0.01)
    assert silences_s[-1] >= 1.2 and "the run waits for generator and trainer" in caplog.messages[0]


async def test_as_long_as_calls_end_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    activity, reads = Activity(), []

    def read() -> list[Vital]:
        with activity.doing("generate"):
            reads.append(1)
        return [STOPPED]

    async with asyncio.timeout(60), watched(activity, read, quiet_s=0.06):
        while len(reads) < 5:
            await asyncio.sleep(0.01)
    assert caplog.messages == []


def keep_the_loop_until(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.01)


async def test_a_run_is_stuck_where_its_event_loop_runs_nothing_and_no_thread_of_a_library_makes_it_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym.run.watchdog.TICK_S", 0.02)
    monkeypatch.setattr("agentgym.runs.liveness.STUCK_S", 0.3)
    ended = threading.Event()

    def library() -> None:
        while not ended.is_set():
            time.sleep(0.01)

    threading.Thread(target=library).start()
    async with asyncio.timeout(60), watched(Activity(), logs=tmp_path / "logs", beat_s=0.02):
        began, said = time.time(), set[str]()
        while time.time() < began + 0.8:  # longer than anything may stay in one place
            await asyncio.sleep(0.01)
            said.add(liveness(tmp_path).text)
        assert "1 processes answer; in flight: nothing" in said and not any("library" in text for text in said)
        keep_the_loop_until(lambda: liveness(tmp_path).is_stuck)
        held = liveness(tmp_path).text
        while liveness(tmp_path).is_stuck:
            await asyncio.sleep(0.01)
    ended.set()
    assert "keep_the_loop_until (run/test_watchdog.py:" in held and held.endswith(": nothing else goes on meanwhile")


async def test_what_is_in_flight_is_in_the_controllers_heartbeat(tmp_path: Path) -> None:
    (tmp_path / "trainer.0.beat").write_text("of a process that was killed")
    activity = Activity()
    with activity.doing("train"), activity.doing("generate"), activity.doing("generate"):
        async with asyncio.timeout(60), watched(activity, logs=tmp_path):
            while not (found := read_pulses(tmp_path)):
                await asyncio.sleep(0.01)
            assert [path.name for path in tmp_path.glob("*.beat")] == ["controller.beat"]
    assert {kind: len(ages_s) for kind, ages_s in found[0].in_flight.items()} == {"train": 1, "generate": 2}
    assert list(tmp_path.iterdir()) == []
