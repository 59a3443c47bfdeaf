"""Generators that give their memory away: nothing samples until the next update, and what was asked for is not lost."""

from __future__ import annotations

import asyncio

import pytest
from scripted import Scripted

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
