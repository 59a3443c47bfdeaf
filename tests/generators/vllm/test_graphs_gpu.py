"""vLLM's captured graphs, on a GPU: whatever a step captures, samples are those of the weights."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from plain_model import make_model

from agentgym.generators.select import VllmEngineConfig
from agentgym.types import GenerateRequest, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # vllm's own
SHARE = 0.2  # of the GPU, for vLLM


@pytest.mark.parametrize("mode", ["FULL_AND_PIECEWISE", "FULL"])
async def test_requests_that_join_others_are_sampled_from_the_weights(generator_config, tmp_path, mode: str) -> None:
    old, new = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
    options = {"compilation_config": {"cudagraph_mode": mode}}
    engine = VllmEngineConfig(gpu_memory_utilization=SHARE, options=options)
    config = replace(generator_config, engine=engine, device="cuda", dtype="bfloat16", max_batch=8)
    requests = [
        GenerateRequest(
            prompt_ids=tuple(3 + (place * number) % 50 for place in range(1, 10 + number % 40)),
            sampling=SamplingParams(max_tokens=10 + 7 * number % 60, seed=number),
        )
        for number in range(1, 65)
    ]
    built = engine.build(config, str(old.folder))
    await built.start()
    try:
        for version, model in ((0, old), (1, new)):
            if version:
                await built.update_weights(version, model.weights())
            completions = await asyncio.gather(*map(built.generate, requests))
            errors = [model.error(request, one) for request, one in zip(requests, completions, strict=True)]
            assert max(errors) < 0.5
    finally:
        await built.close()
