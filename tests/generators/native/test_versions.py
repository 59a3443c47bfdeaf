"""Requests that name a version of the weights, in an engine whose weights change meanwhile."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import pytest_asyncio

from agentgym.errors import UserError
from agentgym.generators.native.engine import NativeEngine
from agentgym.types import GenerateRequest, SamplingParams, VersionSpan

REQUEST = GenerateRequest(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=120, seed=5), version=0)


@pytest_asyncio.fixture
async def engine(generator_config, old_model):
    engine = NativeEngine(replace(generator_config, batch_invariant=True), str(old_model.folder))
    await engine.start()
    yield engine
    await engine.close()


async def test_a_request_that_names_its_weights_is_not_touched_by_updates(
    generator_config, engine, old_model, new_model
):
    await engine.hold(0, None)
    whole = await engine.generate(REQUEST)
    running = asyncio.create_task(engine.generate(REQUEST))
    follows = asyncio.create_task(engine.generate(replace(REQUEST, version=None)))
    await asyncio.sleep(0)
    await engine.update_weights(1, new_model.weights())
    assert (await running).completion_ids == whole.completion_ids and (await running).logprobs == whole.logprobs
    assert (await running).versions == (VersionSpan(version=0, start=0, end=120),)
    assert (await follows).versions[-1].version == 1
    await engine.hold(1, None)
    assert (await engine.generate(replace(REQUEST, version=1))).completion_ids != whole.completion_ids
    engine.retain([1])
    assert engine.holds(1) and not engine.holds(0)
    await engine.hold(0, old_model.weights())
    again = await engine.generate(REQUEST)
    assert (again.completion_ids, again.logprobs) == (whole.completion_ids, whole.logprobs)
    metrics = engine.metrics()
    assert metrics["generator/tokens_total"] == 600, "those of a version that was forgotten count too"
    assert metrics["generator/slots"] == 3 * generator_config.max_batch, "but it has no slots any more"


async def test_an_engine_that_can_not_be_invariant_is_refused(generator_config, old_model):
    config = replace(generator_config, batch_invariant=True, threads=2)
    with pytest.raises(UserError, match=r"threads 2.*dtype=float32 and threads=1"):
        NativeEngine(config, str(old_model.folder))
