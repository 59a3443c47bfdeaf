"""Calls in processes of their own end within their limits, from any thread, and leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentgym.errors import InfraError
from agentgym.killable import CallFailed, KillableCalls

FUNCTIONS = Path(__file__).parent / "data" / "killable_functions.py"


@pytest.fixture(scope="module")
def calls() -> Iterator[KillableCalls]:
    made = KillableCalls(f"{FUNCTIONS}:misbehave", processes=1, cpu_s=0.3, environ={"PYTHONHASHSEED": "7"})
    yield made
    made.close()


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_until_gone(pid: int) -> None:
    while not is_gone(pid):
        time.sleep(0.01)


async def test_a_call_returns_the_value_from_another_process(calls: KillableCalls) -> None:
    pid, argument, hash_seed = await calls({"a": [1, None, "ü"]})  # type: ignore[misc, arg-type]
    assert pid != os.getpid() and argument == {"a": [1, None, "ü"]} and hash_seed == "7"


@pytest.mark.parametrize(
    ("argument", "kind", "text"),
    [
        ("spin", "cpu_limit", "CPU time"),
        ("raise", "KeyError", "no such thing"),
        ("exit", "died", "exited with 3"),
        ("memory", "MemoryError", ""),
    ],
)
async def test_what_goes_wrong_is_named_and_the_next_call_is_served(
    calls: KillableCalls, argument: str, kind: str, text: str
) -> None:
    with pytest.raises(CallFailed) as failed:
        await calls(argument)
    assert failed.value.kind == kind and text in str(failed.value)
    assert calls.wait("next")[1] == "next"  # type: ignore[index, call-overload]


async def test_what_a_dead_process_had_started_ends_with_it(calls: KillableCalls, tmp_path: Path) -> None:
    with pytest.raises(CallFailed, match="exited with 3"):
        await calls({"orphan": str(tmp_path / "pid")})
    wait_until_gone(int((tmp_path / "pid").read_text()))


async def test_a_call_that_only_waits_ends_at_the_wall_limit() -> None:
    calls = KillableCalls(f"{FUNCTIONS}:misbehave", wall_s=0.2)
    with pytest.raises(CallFailed) as failed:
        await calls("sleep")
    assert failed.value.kind == "time_limit"
    calls.close()


def test_threads_with_loops_of_their_own_share_it(calls: KillableCalls) -> None:
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(asyncio.run(one(n)))) for n in range(8)]

    async def one(number: int) -> object:
        return (await calls(number))[1]  # type: ignore[index, call-overload]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [*range(8)]


async def test_a_cancelled_call_hands_its_answer_to_nobody(calls: KillableCalls, tmp_path: Path) -> None:
    first = asyncio.ensure_future(calls([str(tmp_path / "go")]))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    (tmp_path / "go").touch()
    assert (await calls("mine"))[1] == "mine"  # type: ignore[index, call-overload]


async def test_a_process_that_died_while_idle_costs_no_call(calls: KillableCalls) -> None:
    pid: int = (await calls(""))[0]  # type: ignore[index, call-overload, assignment]
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(pid)
    assert (await calls(""))[0] != pid  # type: ignore[index, call-overload]


async def test_its_processes_end_with_it() -> None:
    calls = KillableCalls(f"{FUNCTIONS}:misbehave")
    pid: int = (await calls(""))[0]  # type: ignore[index, call-overload, assignment]
    assert not is_gone(pid)
    del calls
    gc.collect()
    assert is_gone(pid)


def test_they_die_with_a_killed_owner_even_when_they_hang() -> None:
    code = (
        "import sys, time; from agentgym.killable import KillableCalls; import threading\n"
        f"calls = KillableCalls({str(FUNCTIONS)!r} + ':misbehave', processes=1, cpu_s=1000)\n"
        "print(calls.wait('')[0], flush=True)\n"
        "calls.wait('spin')"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    wait_until_gone(pid)


def test_an_exiting_owner_leaves_none_behind() -> None:
    code = (
        "from agentgym.killable import KillableCalls\n"
        f"calls = KillableCalls({str(FUNCTIONS)!r} + ':misbehave'); print(calls.wait('')[0])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    wait_until_gone(int(done.stdout))


def test_a_pickled_one_serves_with_the_same_settings(calls: KillableCalls) -> None:
    copy = pickle.loads(pickle.dumps(calls))
    assert copy.wait("x")[1:] == ["x", "7"]
    copy.close()


@pytest.mark.parametrize("function", ["agentgym.errors:neares", "no_such_module:f"])
def test_a_function_that_cannot_be_imported_is_an_infrastructure_error(function: str) -> None:
    calls = KillableCalls(function)
    with pytest.raises(InfraError, match=f"'nearest'|'{function}'"):
        calls.wait(1)
    calls.close()
