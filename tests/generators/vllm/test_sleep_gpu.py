"""vLLM gives its memory away and takes it back, on a GPU: it can't on a CPU."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
import torch
from plain_adapters import adapted
from plain_model import make_model

from agentgym.actors.gpus import gpu_names
from agentgym.generators.select import VllmEngineConfig
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.cuda_ipc import CudaIpcStore

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]  # vllm's own
SHARE = 0.2  # of the GPU, for vLLM


@pytest.mark.parametrize("eager", [True, False])
async def test_asleep_it_holds_little_and_awake_it_samples_from_the_new_weights(
    generator_config, tmp_path, eager: bool
) -> None:
    old, new = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
    engine = VllmEngineConfig(gpu_memory_utilization=SHARE, sleep=True, enforce_eager=eager)
    config = replace(generator_config, engine=engine, device="cuda", dtype="bfloat16")
    built = engine.build(config, str(old.folder))
    free_before, total = torch.cuda.mem_get_info()
    await built.start()

    def held() -> float:
        """The share of the GPU."""
        return (free_before - torch.cuda.mem_get_info()[0]) / total

    def request(seed: int, most: int = 20) -> GenerateRequest:
        return GenerateRequest(prompt_ids=tuple(range(3, 20)), sampling=SamplingParams(max_tokens=most, seed=seed))

    try:
        first = request(1)
        assert old.error(first, await built.generate(first)) < 0.5
        assert held() > 0.8 * SHARE
        long = asyncio.create_task(built.generate(request(2, most=200)))
        while built.metrics()["generator/running"] < 1:
            await asyncio.sleep(0.01)
        await built.sleep()
        assert held() < 0.3 * SHARE
        waits = asyncio.create_task(built.generate(request(3)))
        await asyncio.sleep(1)
        assert not waits.done()
        await built.update_weights(1, new.weights())
        assert held() > 0.8 * SHARE
        assert {span.version for span in (await waits).versions} == {1}
        assert new.error(request(3), await waits) < 0.5
        assert len((await long).completion_ids) == 200 and (await long).versions[-1].version == 1
        await built.sleep()
        await built.update_weights(2, old.weights())
        assert old.error(first, await built.generate(first)) < 0.5
        for version in (3, 4):  # the second time, too, those without an adapter are lost
            await built.sleep()
            adapters, plain = adapted(old, tmp_path / f"plain{version}", seed=version)
            await built.update_weights(version, adapters.items())
            assert plain.error(first, await built.generate(first)) < 0.5
    finally:
        await built.close()


async def test_weights_on_another_gpu_are_loaded_into_memory_that_can_be_given_away(
    generator_config, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where trainer and generators take turns on two GPUs: the weights are on the first one alone."""
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    old, new = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
    store = CudaIpcStore("run", keep=2, root=tmp_path)
    await store.put(1, [(name, tensor.to("cuda:0", torch.bfloat16)) for name, tensor in new.weights()])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(gpu_names([1, 0])))  # of vLLM's process
    engine = VllmEngineConfig(gpu_memory_utilization=SHARE, sleep=True, enforce_eager=True)
    built = engine.build(replace(generator_config, engine=engine, device="cuda", dtype="bfloat16"), str(old.folder))
    await built.start()
    request = GenerateRequest(prompt_ids=tuple(range(3, 20)), sampling=SamplingParams(max_tokens=20, seed=1))
    try:
        assert old.error(request, await built.generate(request)) < 0.5
        for sleeps in (False, True):
            if sleeps:
                await built.sleep()
            await built.update_weights(1, await store.get(1))
            assert new.error(request, await built.generate(request)) < 0.5
    finally:
        await built.close()
        await store.close()
