"""A process that is stuck is named with where it is, whether or not it still runs Python."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import queue
import re
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from agentgym.runs import liveness as module
from agentgym.runs.heartbeat import BEAT_BYTES, Heartbeat, process_space
from agentgym.runs.liveness import Pulse, liveness, read_pulses, why_silent

PROGRAM = """
import asyncio, ctypes, sys, threading, time
from pathlib import Path
from agentgym.runs.heartbeat import Heartbeat

def hold():  # as native code that never gives the interpreter back
    ctypes.PyDLL(None).sleep(600)

def wait():  # as native code that gives it back: a collective, a lock
    ctypes.CDLL(None).sleep(600)

def small():
    return sum(range(10))

def go_round():
    while True:
        small()

async def blocked():
    wait()

def idle():
    asyncio.run(asyncio.sleep(600))

ways = {"held": hold, "waiting": wait, "round": go_round, "idle": idle, "stopped": idle}
ways["blocked"] = lambda: asyncio.run(blocked())
name = sys.argv[1]
with Heartbeat(Path(sys.argv[2], "logs", f"{name}.0.beat"), name, every_s=0.05, held_s=0.3):
    ways[name]()
"""
EXPECTED = {
    "held": r"stuck in native code that holds the interpreter, for \S+, called at hold \(.*:7\)",
    "waiting": r"waiting in wait \(.*:10\) for \S+",
    "blocked": r"waiting in wait \(.*:10\) for \S+",
    "round": r"(going round|computing) in (go_round|small) \(.*:1[23467]\) for \S+",
    "stopped": r"stopped by a signal",
    "idle": r"using no CPU",
}


class Weights:
    """Stands for a tensor, which a weak reference can watch."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    script = tmp_path / "stuck.py"
    script.write_text(PROGRAM)
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> subprocess.Popen[bytes]:
        running.append(subprocess.Popen([sys.executable, script, name, tmp_path]))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def test_each_way_of_being_stuck_is_told_from_the_others(started, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "MISSED_S", 1.0)
    monkeypatch.setattr(module, "STUCK_S", 0.5)
    left = {name: started(name) for name in EXPECTED}
    said: dict[str, str] = {}
    deadline = time.monotonic() + 120
    while left and time.monotonic() < deadline:
        for pulse in read_pulses(tmp_path / "logs"):
            if pulse.name == "stopped":
                os.kill(pulse.pid, signal.SIGSTOP)
            said[pulse.name] = why_silent(pulse)
            if re.fullmatch(EXPECTED[pulse.name], said[pulse.name]):
                left.pop(pulse.name, None)
        time.sleep(0.05)
    assert not left, said


def test_a_process_that_ends_leaves_no_heartbeat_and_one_that_was_killed_is_left_out(started, tmp_path: Path) -> None:
    with Heartbeat(tmp_path / "logs" / "controller.beat", "controller", held_s=0) as beating:
        while not read_pulses(tmp_path / "logs"):
            time.sleep(0.01)
        assert beating.path.stat().st_size == BEAT_BYTES
    assert list((tmp_path / "logs").iterdir()) == []
    process = started("idle")
    while not read_pulses(tmp_path / "logs"):
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert read_pulses(tmp_path / "logs") == []


def test_threads_that_wait_for_work_are_idle_and_a_call_that_waits_is_not(tmp_path: Path) -> None:
    """Threads of a metric sink do the one, an executor's thread with a call of ours the other."""
    jobs, never, condition = queue.Queue(), threading.Event(), threading.Condition()
    selector, (here, there), (line, far_end) = selectors.DefaultSelector(), socket.socketpair(), multiprocessing.Pipe()
    selector.register(there, selectors.EVENT_READ)

    def notified() -> None:
        with condition:
            condition.wait()

    waits = {
        "queue": jobs.get,
        "event": never.wait,
        "condition": notified,
        "select": selector.select,
        "socket": here.makefile("rb").readline,
        "pipe": line.recv,
    }
    threads = [threading.Thread(target=lambda wait=wait: wait(), name=name) for name, wait in waits.items()]
    with ThreadPoolExecutor(1, "called") as pool, closing(here), closing(there), closing(line), selector:
        pool.submit(lambda: never.wait())
        for thread in threads:
            thread.start()
        try:
            deadline, busy = time.monotonic() + 30, set[str]()
            while busy != {"called_0"} and time.monotonic() < deadline:
                busy = {one["thread"] for one in Heartbeat(tmp_path / "a", "a").beat()["busy"]} & {*waits, "called_0"}
            assert busy == {"called_0"}, "a call is at work also where it waits"
        finally:
            jobs.put(None)
            never.set()
            with condition:
                condition.notify_all()
            there.send(b"\n")
            here.send(b"\n")
            far_end.send(None)
            for thread in threads:
                thread.join()
            far_end.close()


def test_a_heartbeat_leaves_the_locals_of_other_threads_to_them(tmp_path: Path) -> None:
    entered, leave = threading.Event(), threading.Lock()
    leave.acquire()
    held: list[weakref.ref[Weights]] = []

    def forward() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        entered.set()
        leave.acquire(timeout=60)

    thread = threading.Thread(target=forward)
    gc.disable()
    try:
        thread.start()
        entered.wait(60)
        beat = Heartbeat(tmp_path / "one.beat", "one", held_s=0).beat()
        leave.release()
        thread.join()
        assert held[0]() is None
    finally:
        gc.enable()
    assert any("forward" in words for shown in beat["busy"] for words, *_ in shown["frames"])


def _beat(logs: Path, name: str, **values: object) -> None:
    record = {
        "name": name,
        "pid": os.getpid(),
        "place": process_space(),
        "time": time.time(),
        "cpu_percent": 50.0,
        "busy": [],
    }
    (logs / f"{name}.beat").write_text(json.dumps({**record, **values}))


def test_the_run_in_one_sentence(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    assert liveness(tmp_path).text == ""
    _beat(logs, "controller", in_flight={"train": [1, 3.0], "generate": [2, 2.0]}, silence_s=3.0)
    _beat(logs, "trainer")
    _beat(logs, "generator0")
    found = liveness(tmp_path)
    assert (found.text, found.is_stuck) == ("3 processes answer; in flight: 1 x train, 2 x generate", False)
    _beat(logs, "controller", in_flight={"train": [1, 72.0]}, silence_s=70.0)
    found = liveness(tmp_path)
    assert not found.is_stuck and found.text.startswith("still working: nothing has ended for 1m10s"), "a long step"
    _beat(logs, "trainer", busy=[{"thread": "trainer", "frames": [["backward (t.py:3)", 71.0, 71.0]]}])
    assert not liveness(tmp_path).is_stuck and "computing in backward (t.py:3)" in liveness(tmp_path).text
    stuck = [["step (t.py:3)", 71.0, 71.0], ["all_reduce (distributed/distributed_c10d.py:9)", 71.0, 71.0]]
    _beat(logs, "trainer", cpu_percent=0.0, busy=[{"thread": "trainer", "frames": stuck}])
    found = liveness(tmp_path)
    assert found.is_stuck
    assert found.text == (
        "nothing has ended for 1m10s: the loop waits for trainer (1 x 1m12s). Silent: trainer, "
        f"process {os.getpid()}, is waiting for other ranks in all_reduce (distributed/distributed_c10d.py:9) for 1m11s"
    )
    held = [{"thread": "main", "frames": [["reply (my_env.py:7)", 31.0, 31.0]]}]
    _beat(logs, "controller", busy=held, cpu_percent=0.0, loop="main", loop_silence_s=31.0)
    assert "the controller" in liveness(tmp_path).text and "waiting in reply (my_env.py:7)" in liveness(tmp_path).text
    _beat(logs, "controller", process_space="another host", time=time.time() - 40)
    assert liveness(tmp_path).text.startswith(f"the controller, process {os.getpid()}, is stuck in native code")


def test_a_process_elsewhere_is_judged_by_its_heartbeat_alone() -> None:
    far = Pulse(name="trainer", pid=1, process_space="another host", age_s=1.0, cpu_percent=90.0)
    assert why_silent(far) == ""
    assert why_silent(replace(far, cpu_percent=0.0)) == "using no CPU"


@pytest.mark.parametrize("text", ["", "[]", '{"name": 1}', '{"name": "a", "busy": 3}', "\x00" * 9, '{"pid": 1e400}'])
def test_what_no_process_of_ours_wrote_is_left_out(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.beat").write_text(text)
    assert read_pulses(tmp_path) == []
