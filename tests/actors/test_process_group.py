"""Reports of a death: the kernel's, or Monarch's, which comes later and has less detail."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from counting import Counting
from waiting import LONG_S

from agentgym.actors.endpoint import ProcessInfo
from agentgym.actors.hosts import Hosts, HostsConfig
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import NoAnswer, ProcessDied, ProcessGroup
from agentgym.actors.process_id import ProcessId
from agentgym.actors.replies import Answer, NotSent


class FakeEndpoint:
    """Gives one answer, made by the test, to every call."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def call(self, *args: object) -> FakeEndpoint:
        return self

    def as_asyncio(self) -> asyncio.Future[object]:
        return self.answer


class FakeRuntime:
    """Runtime, mesh and actor in one, around a process that Monarch did not start. It answers `start` only."""

    def __init__(self, process: ProcessId, log: Path) -> None:
        self.probe, self.agentgym_lasts = FakeEndpoint(), FakeEndpoint()
        self.probe.answer.set_result([("rank 0", ProcessInfo(process=process))])
        self.hosts = Hosts([self], HostsConfig())  # type: ignore[list-item]
        self.refuses = False
        self._log = log

    def ask(self, actor: FakeRuntime, name: str, args: bytes) -> asyncio.Future[Answer]:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if self.refuses:
            answer.set_exception(NotSent("the mesh is dead"))
        elif name == "start":
            answer.set_result(Answer(number=0, body=pickle.dumps(None)))
        return answer

    def flush(self) -> None:
        pass

    def forget(self, actors: list[FakeRuntime]) -> None:
        pass

    def spawn(self, *args: object, **options: object) -> FakeRuntime:
        return self

    async def stop(self, mesh: FakeRuntime, *, timeout_s: float) -> None:
        pass

    def log_path(self, name: str, rank: int) -> Path:
        return self._log


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def started(
    process: subprocess.Popen[bytes], folder: Path, **claimed: object
) -> tuple[ProcessGroup, FakeRuntime]:
    """claimed: what the actor says of its process that is not so."""
    (folder / "log").write_text("an earlier process's")
    runtime = FakeRuntime(replace(ProcessId.of(process.pid), **claimed), folder / "log")  # type: ignore[arg-type]
    group = ProcessGroup(runtime, "fake", Counting, (0,), ActorOptions())  # type: ignore[arg-type]
    await group.start(timeout_s=LONG_S)
    return group, runtime


async def test_a_death_ends_a_call_that_monarch_leaves_open(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    group, runtime = await started(process, tmp_path)
    call = asyncio.create_task(group.call(Counting.add, 1, timeout_s=None))
    process.kill()
    with pytest.raises(ProcessDied, match=r"fake died during add: process .*\(rank 0\).*SIGKILL \(out of memory\?\)$"):
        await asyncio.wait_for(call, LONG_S)
    assert not runtime.agentgym_lasts.answer.done()
    await group.stop()


@pytest.mark.parametrize("refuses", [False, True])
async def test_the_process_and_its_last_output_are_named_even_when_monarch_reports_first(
    process: subprocess.Popen[bytes], tmp_path: Path, refuses: bool
) -> None:
    group, runtime = await started(process, tmp_path)
    with (tmp_path / "log").open("a") as log:
        log.write("the last output")
    process.kill()
    process.wait()  # the event loop is busy until Monarch has noticed, too
    runtime.refuses = refuses
    if not refuses:
        runtime.agentgym_lasts.answer.set_exception(RuntimeError("the actor has failed"))
    expected = rf"process {process.pid} \(rank 0\).* its last output:\nthe last output$"
    with pytest.raises(ProcessDied, match=expected):
        await group.call(Counting.add, 1, timeout_s=None)
    await group.stop()


async def test_a_failure_without_a_death_has_monarchs_message(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    group, runtime = await started(process, tmp_path)
    call = asyncio.create_task(group.call(Counting.add, 1, timeout_s=None))
    await asyncio.sleep(0)
    runtime.agentgym_lasts.answer.set_exception(RuntimeError("the actor\nhas failed"))
    with pytest.raises(ProcessDied, match=r"fake died during add: the actor has failed$"):
        await asyncio.wait_for(call, LONG_S)
    with pytest.raises(ProcessDied, match=r"fake is dead: the actor has failed$"):
        await group.call(Counting.add, 1, timeout_s=None)
    await group.stop()
    assert process.wait() < 0


async def test_the_number_of_a_process_elsewhere_is_neither_watched_nor_killed(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    group, _ = await started(process, tmp_path, namespace="another host")
    assert group.pids == [] and [p.pid for p in group.processes] == [process.pid]
    group.give_up("it hangs")
    await group.stop()
    assert process.poll() is None, "the process with this number here is somebody else's"


async def test_a_number_that_was_given_to_another_process_is_not_killed(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "log").touch()
    with pytest.raises(ProcessDied, match=rf"process {process.pid} \(rank 0\) of fake died: it no longer exists"):
        await started(process, tmp_path, start_ticks=1)
    assert process.poll() is None


KILLED = """error creating proc (host rank 0) on host mesh agent host_agent.service@ipc://@xyz, state: {"status":
{"Failed":"proc 'fake-0<x>' failed to configure process: Ready(Terminal(Killed { signal: 9, core_dumped: false }))"}}"""


async def test_a_process_that_is_killed_while_it_starts_is_one_sentence(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    runtime = FakeRuntime(ProcessId.of(process.pid), tmp_path / "log")
    runtime.probe = FakeEndpoint()
    runtime.probe.answer.set_exception(ValueError(KILLED))
    group = ProcessGroup(runtime, "fake", Counting, (0,), ActorOptions())  # type: ignore[arg-type]
    with pytest.raises(ProcessDied) as died:
        await group.start(timeout_s=LONG_S)
    assert str(died.value) == "fake is dead: its process was killed by SIGKILL (out of memory?) while it started"


async def test_the_time_in_which_the_caller_was_late_does_not_count(
    process: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    group, runtime = await started(process, tmp_path)
    loop, answer = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()
    runtime.ask = lambda *args: answer  # type: ignore[method-assign, assignment]

    def arrive(turns: int) -> None:  # behind others that arrived meanwhile
        if turns:
            loop.call_soon(arrive, turns - 1)
        elif not answer.done():
            answer.set_result(Answer(number=0, body=pickle.dumps(3)))

    def hold() -> None:
        time.sleep(0.6)
        arrive(3)

    loop.call_soon(hold)
    assert await group.call_one(Counting.add, 1, timeout_s=0.5) == 3
    with pytest.raises(NoAnswer, match=r"did not answer add within 0.05 s"):
        runtime.ask = lambda *args: loop.create_future()  # type: ignore[method-assign, assignment]
        await group.call_one(Counting.add, 1, timeout_s=0.05)
    await group.stop()
