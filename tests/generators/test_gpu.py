"""The engines of ours on one GPU, against a plain forward pass on the CPU."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from plain_model import make_model

from agentgym.generators.select import NativeEngineConfig, TransformersEngineConfig
from agentgym.types import GenerateRequest, SamplingParams

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("engine", "family"),
    [(NativeEngineConfig(), "qwen3"), (NativeEngineConfig(), "llama"), (TransformersEngineConfig(), "gpt2")],
)
async def test_logprobs_are_those_of_the_weights_before_and_after_an_update(
    generator_config, tmp_path, engine, family, dtype
):
    old, new = (make_model(tmp_path / str(seed), seed=seed, family=family) for seed in (0, 1))
    config = replace(generator_config, engine=engine, device="cuda", dtype=dtype)
    requests = [
        GenerateRequest(prompt_ids=tuple(range(3, length)), sampling=SamplingParams(max_tokens=40, seed=length))
        for length in range(10, 60, 5)
    ]
    built = engine.build(config, str(old.folder))
    await built.start()
    for version, model in ((0, old), (1, new)):
        if version:
            await built.update_weights(version, model.weights())
        completions = await asyncio.gather(*(built.generate(request) for request in requests))
        errors = [model.error(request, one) for request, one in zip(requests, completions, strict=True)]
        assert max(errors) < (1e-3 if dtype == "float32" else 0.5)
    await built.close()
