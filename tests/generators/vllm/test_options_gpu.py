"""vLLM's options, on GPUs: with each of them samples are those of the weights, before an update and after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from plain_model import PlainModel, make_model

from agentgym.generators.select import VllmEngineConfig
from agentgym.types import Completion, GenerateRequest, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # vllm's own
SHARE = 0.2  # of the GPU, for vLLM
BFLOAT16, FLOAT8 = 0.5, 2.0
"""More than rounding moves a log-probability of these models, in nats. Computed on a CPU, bfloat16 moves one of these
completions' by up to 0.07 and float8 weights by up to 0.6; under the other model the farthest is 6 to 8 away."""
CACHE = {"kv_cache_memory_bytes": 500_000_000}  # others on the GPU do not matter then
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 4}


def farthest(model: PlainModel, requests: Sequence[GenerateRequest], completions: Sequence[Completion]) -> float:
    return max(model.error(request, one) for request, one in zip(requests, completions, strict=True))


@pytest.mark.parametrize(
    ("fields", "rounding"),
    [
        pytest.param({}, BFLOAT16, id="default"),
        pytest.param({"options": {"speculative_config": NGRAM}}, BFLOAT16, id="speculative"),
        pytest.param({"options": {"compilation_config": {"cudagraph_mode": "FULL"}}}, BFLOAT16, id="whole steps"),
        pytest.param({"options": {"kv_cache_dtype": "fp8"}}, FLOAT8, id="float8 cache"),
        pytest.param({"options": {"quantization": "fp8"}}, FLOAT8, id="float8 weights"),
        pytest.param({"tensor_parallel": 2}, BFLOAT16, id="two GPUs"),
    ],
)
async def test_requests_that_join_others_are_sampled_from_the_weights(
    generator_config, tmp_path, fields, rounding: float
) -> None:
    """More requests than places, so that a step computes prompts beside sampled tokens."""
    engine = VllmEngineConfig(gpu_memory_utilization=SHARE, **fields)
    engine = replace(engine, options=CACHE | dict(engine.options))
    if torch.cuda.device_count() < engine.gpus_per_replica:
        pytest.skip(f"needs {engine.gpus_per_replica} GPUs")
    old, new = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
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
        for version, (model, other) in enumerate(((old, new), (new, old))):
            if version:
                await built.update_weights(version, model.weights())
            completions = await asyncio.gather(*map(built.generate, requests))
            error = farthest(model, requests, completions)
            print(f"version {version}: {error:.3f} nats, {farthest(other, requests, completions):.3f} of the other's")
            assert error < rounding < farthest(other, requests, completions)
    finally:
        await built.close()
