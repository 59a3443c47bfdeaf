"""Containers that die under calls, and owners that die over containers."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from holding import HOLD, LIMITS, Holding, owned
from pool_fakes import until

from agentgym.sandbox import CallCase, GradeRequest, Limits
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.engine import ENDS_WITHIN_S, Engine
from agentgym_sandboxes.docker.profile import container_settings
from agentgym_sandboxes.docker.volumes import PREFIX
from agentgym_sandboxes.host.reaper import is_orphan, owner_label

pytestmark = [pytest.mark.hostile, pytest.mark.asyncio(loop_scope="session")]

PROMISED_S = 5.0  # docs/security.md: so soon after its owner was killed, no container is left
OWNER = """
import asyncio, os
from agentgym.sandbox import Limits
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

async def main():
    config = DockerConfig(pool_size=2, spares=0, spare_sessions=0)
    task = SandboxSpec(session=True, profile="task")
    async with DockerBackend(config) as backend, backend.session() as session, backend.session_for(task) as other:
        await session.exec("sleep 1000 &")
        await other.exec("setsid sleep 1000 &")
        while backend.metrics()["sandbox/containers_live"] < 2:
            await asyncio.sleep(0.05)
        limits = Limits(wall_s=600.0, cpu_s=600)
        busy = [asyncio.create_task(backend.run("while True: pass", limits=limits)) for _ in range(4)]
        busy.append(asyncio.create_task(session.run("while True: pass", limits=limits)))
        while backend.metrics()["sandbox/slots_used"] < 4:
            await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.gather(*busy)

asyncio.run(main())
"""


FORK = """child = os.fork()
        if child == 0:
            import time
            os.close(1)
            time.sleep(600)
            os._exit(0)
        print(child, flush=True)"""


def request(number: int) -> GradeRequest:
    return GradeRequest(
        code="def f(x):\n    return x + 1\n",
        entry="f",
        cases=(CallCase(args=(number,), expected=number + 1),),
        limits=Limits(wall_s=10.0),
    )


async def owned_by(pid: int) -> list[str]:
    return [c.container_id for c in await owned() if c.owner.split(":")[1:2] == [str(pid)]]


async def kill_containers(ids: list[str]) -> None:
    for one in ids:
        await asyncio.to_thread(subprocess.run, ["docker", "kill", one], capture_output=True, check=False, timeout=30)


async def pause(container: str) -> None:
    """On a busy machine runc may say that it is unable to freeze it."""
    command, end_s = ["docker", "pause", container], time.monotonic() + 60
    while True:
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False, timeout=60)
        if done.returncode == 0:
            return
        assert time.monotonic() < end_s, done.stderr
        await asyncio.sleep(0.1)


async def test_calls_under_way_when_their_container_is_killed_are_made_again(engine: str) -> None:
    """Eight calls on two containers, each with an answer that is no other's."""

    async def answer(number: int) -> str:
        return (await backend.run(f"{HOLD}print({number} * 1000003)", limits=LIMITS)).stdout

    async with DockerBackend(DockerConfig(pool_size=2, spares=0), Holding(1)) as backend:
        await until(lambda: backend.metrics()["sandbox/containers_live"] >= 2)
        [held, _] = backend._pool._live
        calls = [asyncio.create_task(answer(number)) for number in range(8)]
        await until(lambda: held.reserved >= 4)
        mine = await owned_by(os.getpid())
        await kill_containers([held.name])
        assert await asyncio.gather(*calls) == [f"{number * 1000003}\n" for number in range(8)]
        metrics = backend.metrics()
        assert metrics["sandbox/calls_ok_total"] == metrics["sandbox/calls_total"] == 8
        assert metrics["sandbox/retries_total"] == 4
        assert metrics["sandbox/replaced_lost_total"] == 1
        await until(lambda: backend.metrics()["sandbox/containers_live"] >= 2)
        assert (await backend.grade(request(1))).passed
        assert set(await owned_by(os.getpid())) != set(mine)


async def test_a_call_that_goes_on_past_its_limit_costs_its_container_and_is_made_again(engine: str) -> None:
    """What an agent that hangs looks like from here: it is stopped by the freezer of control groups."""
    async with DockerBackend(DockerConfig(pool_size=2, spares=0, ping_every_s=100.0)) as backend:
        await until(lambda: backend.metrics()["sandbox/containers_live"] >= 2)
        frozen = backend._pool._live[0]
        await pause(frozen.name)
        calls = [backend.run(f"print({number})", limits=Limits(wall_s=4.0)) for number in range(4)]
        results = await asyncio.gather(*calls)
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(4)]
        assert backend.metrics()["sandbox/replaced_backstop_total"] == 1
        async with asyncio.timeout(60):
            while frozen.name in {c.name for c in await owned()}:
                await asyncio.sleep(0.1)


async def test_processes_that_outlive_their_call_are_counted(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1, spares=0)) as backend:
        for code in ("pass", "import subprocess; subprocess.run(['sleep', '0'])"):
            await backend.run(code)
        await backend.run("while True: pass", limits=Limits(wall_s=0.5))
        assert (await backend.grade(request(1))).passed
        assert backend.metrics()["sandbox/leaks_total"] == 0
        await backend.run("import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)")
        assert backend.metrics()["sandbox/leaks_total"] == 1
        assert backend.metrics()["sandbox/containers_live"] == 1


async def test_a_silent_container_is_replaced(engine: str) -> None:
    config = DockerConfig(pool_size=1, spares=0, ping_every_s=0.3, ping_timeout_s=4.0)
    async with DockerBackend(config) as backend:
        await pause(backend._pool._live[0].name)
        await until(lambda: backend.metrics()["sandbox/replaced_ping_total"])
        assert (await backend.grade(request(1))).passed


async def test_a_container_that_nobody_waits_for_is_swept(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, reap_every_s=0.3)) as backend:
        group = backend._group
        assert group is not None
        docker = group.engines[0]
        waited_for, forgotten = f"test-{time.time_ns()}", f"test-{time.time_ns()}-forgotten"
        for name in (waited_for, forgotten):
            await docker.create(container_settings(backend.config, backend._image, backend._owner), name)
        docker.names.discard(forgotten)  # as after a create that came too late
        async with asyncio.timeout(60):
            while forgotten in {c.name for c in await docker.owned()}:
                await asyncio.sleep(0.1)
            while backend.metrics()["sandbox/reaped_total"] < 1:
                await asyncio.sleep(0.1)
        assert waited_for in {c.name for c in await docker.owned()}  # it may yet be started
        assert (await backend.grade(request(1))).passed
        await docker.remove(waited_for)


async def test_a_cancelled_call_gives_its_slot_back_soon(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1, slots=1)) as backend:
        call = asyncio.create_task(backend.run("while True: pass", limits=Limits(wall_s=600.0, cpu_s=600)))
        await asyncio.sleep(0.3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(60):
            assert (await backend.grade(request(1))).passed
        num_replaced = [v for k, v in backend.metrics().items() if k.startswith("sandbox/replaced_")]
        assert sum(num_replaced) == 0  # its agent ended it


async def test_a_busy_event_loop_costs_no_container(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1, ping_every_s=60.0, ping_timeout_s=0.3)) as backend:
        container = backend._pool._live[0]
        ping = asyncio.create_task(container.ping())
        await asyncio.sleep(0)  # the ping is on its way
        began_s = time.monotonic()
        select.select([container._transport.get_extra_info("socket")], [], [], 60)  # the answer lies there
        time.sleep(max(0.0, 0.6 - (time.monotonic() - began_s)))  # what a training step in this process does
        await ping
        assert container.lost is None


async def gone_s(code: str, number: signal.Signals) -> float:
    """How long containers lasted after a signal to their owner, which may leave a child that lives on."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    child = 0
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            line = await process.stdout.readline()
        child = 0 if line == b"ready\n" else int(line)
        assert len(await owned_by(process.pid)) == 4
        process.send_signal(number)
        began_s = time.monotonic()
        async with asyncio.timeout(60):
            await process.wait()
            while await owned_by(process.pid):
                await asyncio.sleep(0.1)
        took_s = time.monotonic() - began_s
        if child:
            os.kill(child, 0)  # it is still there
        return took_s
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        if child:
            os.kill(child, signal.SIGKILL)


async def best_gone_s(code: str, number: signal.Signals) -> float:
    """The machine may stand still in one of three times; what is promised is what ours takes of it."""
    best_s = await gone_s(code, number)
    for _ in range(2):
        if best_s >= PROMISED_S:
            best_s = min(best_s, await gone_s(code, number))
    return best_s


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
async def test_no_container_outlives_its_owner(engine: str, number: signal.Signals) -> None:
    assert await best_gone_s(OWNER, number) < PROMISED_S


async def test_no_container_outlives_its_owner_though_a_child_of_its_lives_on(engine: str) -> None:
    """As the workers of a process pool do, when their parent is killed."""
    code = OWNER.replace('print("ready", flush=True)', FORK)
    assert await best_gone_s(code, signal.SIGKILL) < PROMISED_S


async def end_one(*, stuck: bool, ends_within_s: float) -> set[str]:
    """What the engine did with a container that was to end."""
    began = int(time.time())
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, ping_every_s=60)) as backend:
        assert backend._group is not None
        backend._group.engines[0].ends_within_s = ends_within_s
        await backend.run("pass")
        [container] = [one for one in await owned() if one.owner == backend._owner]
        if stuck:
            await pause(container.name)
    events = await asyncio.to_thread(
        subprocess.run,
        ["docker", "events", "--since", str(began), "--until", str(int(time.time()) + 1), "--filter",
         f"container={container.name}", "--format", "{{.Action}}"],
        capture_output=True, text=True, check=True, timeout=30,
    )  # fmt: skip
    assert container.container_id not in {one.container_id for one in await owned()}
    return set(events.stdout.split())


async def test_a_container_ends_by_itself_so_that_no_removal_of_ours_meets_its_engines(engine: str) -> None:
    actions = await end_one(stuck=False, ends_within_s=60.0)
    assert "die" in actions and "kill" not in actions, actions


async def test_a_container_that_does_not_end_is_killed(engine: str) -> None:
    assert {"pause", "kill", "die"} <= await end_one(stuck=True, ends_within_s=ENDS_WITHIN_S)


async def test_clean_removes_what_a_dead_owner_created_but_never_started(engine: str) -> None:
    backend = DockerBackend()
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = owner_label().split(":")[0]
    orphan, kept = f"test-{time.time_ns()}-orphan", f"test-{time.time_ns()}-kept"
    owners = {orphan: f"{host}:{dead.pid}:1:backend", kept: owner_label()}
    docker = await Engine.connect(None, 10.0)
    try:
        for name, owner in owners.items():
            await docker.create(container_settings(backend.config, backend._image, owner), name)
        said: list[str] = []
        count = await backend.clean(said.append)
        assert count == len(said)  # others' may be among them
        assert sum(f":{dead.pid}:" in line for line in said) == 1, said
        left = [c.name for c in await docker.owned() if c.name in owners]
        assert left == [kept]  # a living owner's is left alone
    finally:
        for owned in await docker.owned():
            if owned.name in owners:
                await docker.remove(owned.container_id)
        await docker.close()


async def test_an_owner_is_a_process_and_not_just_its_number() -> None:
    host, pid, began = owner_label().split(":")
    assert not is_orphan(f"{host}:{pid}:{began}")
    assert not is_orphan(f"{host}:{pid}:{began}:backend")
    assert is_orphan(f"{host}:{pid}:{int(began) - 1}")
    assert is_orphan(f"{host}:{pid}:{int(began) - 1}:backend")
    assert not is_orphan(f"{host.split('/')[0]}/another-boot/1:{pid}:1")
    assert not is_orphan(f"elsewhere:{pid}:1")
    assert not is_orphan("")
    assert Path(f"/proc/{pid}").exists()


VERDICT = """
import asyncio
from dataclasses import replace
from agentgym.types import SandboxSpec
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

async def main():
    task = SandboxSpec(session=True, profile="task", memory_mib=512)
    async with DockerBackend(DockerConfig(pool_size=1, spares=0, spare_sessions=0)) as backend:
        async with backend.session_for(task) as session, session.machine.freeze() as frozen:
            await frozen.get_file("/etc/passwd", max_bytes=1 << 20)
            async with backend.session_for(replace(task, image=frozen.image)):
                print(frozen.image, flush=True)
                await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_an_owner_that_is_killed_in_a_verdict_leaves_no_container_and_no_image(engine: str) -> None:
    """What runs ends by itself; what never ran, and the frozen machine, go when the next one starts or cleans. There is
    no network of its own, and no volume but those that are kept for all."""

    def said(*words: str) -> str:
        return subprocess.run(["docker", *words], capture_output=True, text=True, check=True).stdout

    process = subprocess.Popen([sys.executable, "-c", VERDICT], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    image = (await asyncio.to_thread(process.stdout.readline)).strip()
    assert image in await asyncio.to_thread(said, "images", "-aq", "--no-trunc")
    form = "{{.HostConfig.NetworkMode}}{{range .Mounts}} {{.Name}}{{end}}"
    found = await asyncio.to_thread(said, "inspect", "-f", form, *await owned_by(process.pid))
    assert {word for line in found.splitlines() for word in line.split() if not word.startswith(PREFIX)} == {"none"}
    process.kill()
    process.wait()
    process.stdout.close()
    async with asyncio.timeout(60):
        while any(one.state == "running" for one in await owned() if one.owner.split(":")[1:2] == [str(process.pid)]):
            await asyncio.sleep(0.05)
    await DockerBackend().clean(lambda text: None)
    assert await owned_by(process.pid) == []
    assert image not in await asyncio.to_thread(said, "images", "-aq", "--no-trunc")
