"""Generators that give their memory away: nothing samples until the next update, and what was asked for is not lost."""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest
from scripted import Scripted
from waiting import until

from agentgym.generators.config import GeneratorConfig

pytestmark = pytest.mark.slow


async def test_a_request_waits_for_the_update_that_wakes_the_generators(fleet) -> None:
    async with fleet(Scripted(), GeneratorConfig(replicas=2, probe_every_s=0.3, probe_timeout_s=30)) as f:
        await f.publish(1)
        await f.generators.sleep()
        await f.generators.sleep()  # they sleep already
        requests = [f.request(number) for number in range(8)]
        asked = [asyncio.create_task(f.generators.generate(request)) for request in requests]
        await f.running(8)
        assert not any(one.done() for one in asked)
        await f.publish(2)
        for request, completion in zip(requests, await asyncio.gather(*asked), strict=True):
            assert f.versions_of(completion) == {2}
            assert len(completion.completion_ids) == request.sampling.max_tokens


async def test_weights_that_they_had_before_are_loaded_again(fleet) -> None:
    async with fleet(Scripted()) as f:
        await f.publish(1)
        await f.generators.sleep()
        await f.generators.update_weights(1)
        request = f.request(0)
        assert (await f.generators.generate(request)).completion_ids == f.expected(request, 1)


async def test_a_replica_that_died_asleep_starts_again_when_the_others_wake(fleet) -> None:
    """While they sleep the trainer has the memory."""
    async with fleet(Scripted(), GeneratorConfig(replicas=2, probe_every_s=0.3, probe_timeout_s=30)) as f:
        await f.publish(1)
        await f.generators.sleep()
        processes = set(children())
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: f.generators.get_metrics()["generator/respawns_total"] == 1)
        await asyncio.sleep(1.0)  # several times as long as it waits before it starts again
        assert set(children()) < processes and len(f.generators.pids()) == 1
        await f.publish(2)
        await until(lambda: len(f.generators.pids()) == 2)
        for number in range(8):
            assert f.versions_of(await f.generators.generate(f.request(number))) == {2}


async def test_who_goes_to_sleep_waits_for_a_replica_that_is_starting(fleet) -> None:
    async with fleet(Scripted(start_s=1.0), GeneratorConfig(replicas=2, probe_every_s=0.3, probe_timeout_s=30)) as f:
        await f.publish(1)
        processes = set(children())
        os.kill(f.generators.pids()[0], signal.SIGKILL)
        await until(lambda: bool(set(children()) - processes))
        assert len(f.generators.pids()) == 1
        await f.generators.sleep()
        assert len(f.generators.pids()) == 2
        asked = [asyncio.create_task(f.generators.generate(f.request(number))) for number in range(8)]
        await f.running(8)
        assert not any(one.done() for one in asked), "one of them is awake"
        await f.publish(2)
        await asyncio.gather(*asked)


def children() -> list[int]:
    return [process.pid for process in psutil.Process().children() if process.status() != psutil.STATUS_ZOMBIE]
