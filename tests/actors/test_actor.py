"""Actors and services of any kind: options, endpoints, sessions, fan-out, errors, environment."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
from pathlib import Path

import psutil
import pytest
from counting import Asking, Counting
from slow_start import SlowStart
from waiting import LONG_S, no_child_left, until

from agentgym.actors.actor import ServiceActor
from agentgym.actors.child import GARBAGE
from agentgym.actors.endpoint import LifecycleActor, endpoint, endpoint_name
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import ProcessDied
from agentgym.actors.replies import NotSent
from agentgym.actors.runtime import Runtime, current_runtime
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError, UserError


def test_each_replica_gets_its_own_gpus() -> None:
    options = ActorOptions(num_replicas=2, with_gpus=True, gpus=(4, 5, 6, 7))
    visible = [options.for_replica(i).environment(0)["CUDA_VISIBLE_DEVICES"] for i in range(2)]
    assert visible == ["4,5", "6,7"]
    pair = ActorOptions(procs=2, with_gpus=True, gpus=(0, 1))
    assert [pair.environment(rank)["CUDA_VISIBLE_DEVICES"] for rank in range(2)] == ["0", "1"]
    beside = ActorOptions(num_replicas=2, with_gpus=True, gpus=(2, 3), peer_gpus=(0, 3)).for_replica(1)
    assert beside.environment(0)["CUDA_VISIBLE_DEVICES"] == "3,0", "its own comes first, and none twice"
    assert ActorOptions().environment(0)["CUDA_VISIBLE_DEVICES"] == "", "no GPU unless asked"
    assert "CUDA_VISIBLE_DEVICES" not in ActorOptions(with_gpus=True).environment(0)


def test_invalid_options_are_refused() -> None:
    with pytest.raises(UserError, match=r"gpus \(0,\) are too few for 2 replicas"):
        ActorOptions(num_replicas=2, with_gpus=True, gpus=(0,))
    with pytest.raises(UserError, match=r"hosts is 2 and procs 3: each host gets an equal number"):
        ActorOptions(hosts=2, procs=3)
    with pytest.raises(UserError, match="procs 0"):
        ActorOptions(procs=0)


class Overriding(Counting):
    @endpoint
    async def add(self, number: int) -> int:
        return -number


def test_a_call_needs_an_endpoint_of_the_class_and_the_error_names_them() -> None:
    assert endpoint_name(Counting, Counting.add) == "add"
    assert endpoint_name(Counting, LifecycleActor.probe) == "probe"
    assert endpoint_name(Overriding, Counting.add) == "add", "an override is called through its base class"
    with pytest.raises(UserError, match=r"pass one as `Counting\.name`\. Did you mean 'add'\?") as refused:
        endpoint_name(Counting, Overriding.add)  # of a class below
    available = str(refused.value).rpartition("Available: ")[2].rstrip(".").split(", ")
    assert available == sorted(available) and {"add", "pid", "probe", "say"} <= set(available), "its own and inherited"
    assert not {"reset", "options", "__init__"} & set(available), "only endpoints"
    for other in (Counting.reset, ServiceActor.options, "add", None):
        with pytest.raises(UserError, match=r"is not an endpoint of Counting.*Available: add, finish"):
            endpoint_name(Counting, other)


def test_without_a_runtime_the_error_says_what_to_do() -> None:
    with pytest.raises(UserError, match="async with Runtime"):
        current_runtime()


@pytest.mark.slow
async def test_an_actor_runs_on_its_processes_with_their_environment(tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path):
        group = await Counting.options(procs=2, threads=3, mesh_name="pair").as_actor(10)
        assert len(set(group.pids)) == 2 and os.getpid() not in group.pids
        assert await group.call(Counting.add, 1, timeout_s=LONG_S) == [11, 11]
        assert await group.call(Counting.variable, "OMP_NUM_THREADS", timeout_s=LONG_S) == ["3", "3"]
        with pytest.raises(ValueError, match="no variable 'NOTHING'"):
            await group.call(Counting.variable, "NOTHING", timeout_s=LONG_S)
        with pytest.raises(InfraError, match=r"pair did not answer sleep within 0\.1 s"):
            await group.call(Counting.sleep, 600.0, timeout_s=0.1)
        assert await group.call(Counting.add, 1, timeout_s=LONG_S) == [12, 12], "an error ends no actor"
        with pytest.raises(UserError, match="reset is not an endpoint of Counting"):
            await group.call(Counting.reset, timeout_s=LONG_S)
        await Counting.shutdown(group)
        with pytest.raises(ProcessDied, match="pair is dead: stopped"):
            await group.call(Counting.add, 1, timeout_s=LONG_S)


@pytest.mark.slow
async def test_the_death_of_a_process_ends_its_calls_at_once_and_shows_its_last_output(tmp_path: Path) -> None:
    async with no_child_left(), Runtime(log_dir=tmp_path):
        group = await Counting.options(procs=2).as_actor(0)
        assert set(await group.call(Counting.garbage, timeout_s=LONG_S)) == {GARBAGE}
        await group.call(Counting.say, "this was its last output", timeout_s=LONG_S)
        call = asyncio.create_task(group.call(Counting.sleep, 600.0, timeout_s=600))
        await asyncio.sleep(0.2)
        os.kill(group.pids[1], signal.SIGKILL)
        pattern = rf"process {group.pids[1]} \(rank 1\) of counting died: .*(?s:.)*this was its last output"
        with pytest.raises(ProcessDied, match=pattern):
            await asyncio.wait_for(call, LONG_S)
        await group.stop()


@pytest.mark.slow
async def test_while_actors_are_used_the_collector_leaves_alone_what_was_there_before() -> None:
    before = [object()]
    async with Runtime():
        async with Runtime():
            pass
        assert not any(thing is before for thing in gc.get_objects())  # of those that it looks at
    assert any(thing is before for thing in gc.get_objects())


@pytest.mark.slow
async def test_calls_keep_their_order_with_each_other_and_with_broadcasts() -> None:
    async with Runtime() as runtime:
        group = Counting.launch("counting", 0, options=ActorOptions(), runtime=runtime)
        await group.start(timeout_s=60)
        calls = [asyncio.ensure_future(group.call_one(Counting.add, 1, timeout_s=60)) for _ in range(100)]
        await asyncio.sleep(0)  # all are made, and none has left
        group.broadcast(Counting.subtract, 100)
        last = await group.call_one(Counting.add, 0, timeout_s=60)
        assert (await asyncio.gather(*calls), last) == (list(range(1, 101)), 0)
        with pytest.raises(NotSent, match="agentgym_answer"):
            await asyncio.wait_for(runtime.ask("no actor", "add", pickle.dumps((1,))), LONG_S)
        unknown = await asyncio.wait_for(runtime.ask(group._ranks[0], "nothing", pickle.dumps(())), LONG_S)
        with pytest.raises(AttributeError, match="nothing"):
            unknown.value()
        with pytest.raises(ValueError, match="no variable 'NOWHERE'"):  # one of a message's calls, and the others go on
            await asyncio.gather(
                *(group.call_one(Counting.variable, name, timeout_s=60) for name in ("PATH", "NOWHERE", "HOME"))
            )
        await group.stop()


async def test_a_service_routes_fans_out_and_keeps_sessions(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path):
        launcher = Counting.options(procs=2, num_replicas=2)
        with pytest.raises(UserError, match="num_replicas is for as_service"):
            await launcher.as_actor(0)
        service = await Counting.options(num_replicas=2).as_service(0)
        pids = service.pids()
        routed = [await service.route(Counting.pid) for _ in range(4)]
        assert set(routed) == set(pids), "equal load takes turns"
        assert sorted(await service.fanout(Counting.pid)) == sorted(pids)
        async with service.session() as session:
            stayed = {await session.route(Counting.pid) for _ in range(5)}
            assert len(stayed) == 1 and session.moves == 0
            os.kill(stayed.pop(), signal.SIGKILL)
            await session.route(Counting.pid)
            assert session.moves == 1
        assert service.get_metrics()["requests_total"] == 10
        await Counting.shutdown(service)
        with pytest.raises(InfraError, match="service counting is closed"):
            await service.route(Counting.pid)

        pairs = await launcher.as_service(5)
        assert await pairs.call_all(Counting.add, 1) == [[6, 6], [6, 6]]
        await pairs.close()


@pytest.mark.slow
async def test_a_full_replica_makes_callers_wait_and_a_deadline_ends_the_wait(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path):
        settings = ServiceSettings(max_waiting=2)
        service = await Counting.options().as_service(0, settings=settings)
        go_on = tmp_path / "go_on"
        calls = [asyncio.create_task(service.route(Counting.wait_for, str(go_on))) for _ in range(6)]
        await until(lambda: service.get_metrics()["in_flight"] == 2)
        with pytest.raises(InfraError, match=r"counting: no answer to pid within 0\.05 s"):
            await service.route(Counting.pid, timeout_s=0.05)
        assert service.get_metrics()["in_flight"] == 2 and not any(call.done() for call in calls)
        go_on.touch()
        await asyncio.gather(*calls)
        assert service.get_metrics()["requests_total"] == 6
        await service.close()


@pytest.mark.slow
async def test_one_that_is_stopped_while_it_starts_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    """It could not answer before it has started, which takes an engine minutes."""
    file = tmp_path / "child"
    async with no_child_left(), Runtime(log_dir=tmp_path) as runtime:
        group = SlowStart.launch("slow", file, options=ActorOptions(), runtime=runtime)
        starting = asyncio.create_task(group.start(timeout_s=LONG_S))
        await until(file.exists)
        child = psutil.Process(int(file.read_text()))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        began = asyncio.get_running_loop().time()
        await group.stop()
        assert asyncio.get_running_loop().time() - began < 5
        psutil.wait_procs([child], timeout=5)  # it was told to end, and has a moment for it
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
async def test_answers_to_an_actor_that_stops_leave_the_one_that_gives_them_alive() -> None:
    async with Runtime():
        counting, asking = await Counting.as_actor(10), await Asking.as_actor()
        after_s = [
            0.3 + number / 100 for number in range(150)
        ]  # while it stops; once its process is gone they are lost
        await asking.call_one(Asking.ask, counting.actor, after_s, timeout_s=LONG_S)
        await asyncio.gather(asking.stop(), counting.call_one(Counting.sleep, after_s[-1], timeout_s=LONG_S))
        assert await counting.call_one(Counting.add, 1, timeout_s=LONG_S) == 11
        await counting.stop()
