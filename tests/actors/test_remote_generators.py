"""Requests that go to replicas without the process that started them in between."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

from scripted import Scripted
from waiting import until

from agentgym.actors.caller import Caller
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.remote import RemoteGenerators


async def test_requests_of_a_dead_engine_wait_until_the_controller_has_replaced_it(
    fleet: Callable, tmp_path: Path
) -> None:
    (held := tmp_path / "held").touch()
    engine = Scripted(held_by=held, ended_by=tmp_path / "end")
    config = GeneratorConfig(replicas=1, probe_every_s=0.3, probe_timeout_s=30)
    async with fleet(engine, config) as made, Caller() as caller:
        far = RemoteGenerators("worker0", caller, config)
        far.follow(before := made.generators.routes())
        requests = [made.request(number) for number in range(4)]
        playing = [asyncio.create_task(far.generate(one)) for one in requests]
        await made.running(4)
        (tmp_path / "end").touch()
        held.unlink()
        await until(lambda: made.generators.routes().names not in (before.names, ("", None)))
        far.follow(made.generators.routes())
        answers = await asyncio.gather(*playing)
        assert [one.completion_ids for one in answers] == [made.expected(one, 0) for one in requests]
        assert far.get_metrics()["retries_total"] == 4


async def test_requests_of_a_replica_that_dies_are_made_again_at_another(fleet: Callable, tmp_path: Path) -> None:
    (held := tmp_path / "held").touch()
    config = GeneratorConfig(replicas=2, probe_every_s=0.3, probe_timeout_s=30)
    async with fleet(Scripted(held_by=held), config) as made, Caller() as caller:
        far = RemoteGenerators("worker0", caller, config)
        far.follow(made.generators.routes())
        requests = [made.request(number) for number in range(4)]
        playing = [asyncio.create_task(far.generate(one)) for one in requests]
        await made.running(4)
        assert far.get_metrics()["in_flight"] == far.demand == 4
        os.kill(made.generators.pids()[0], signal.SIGKILL)
        await until(lambda: None in made.generators.routes().replicas)
        far.follow(made.generators.routes())
        held.unlink()
        answers = await asyncio.gather(*playing)
        assert [one.completion_ids for one in answers] == [made.expected(one, 0) for one in requests]
        assert far.get_metrics()["retries_total"] == 2, "two were at each"
