"""New weights go to where vLLM computes with them, in place, when nothing is done to weights after loading."""

from __future__ import annotations

import asyncio
import importlib.util
from dataclasses import replace
from pathlib import Path

import pytest
from plain_adapters import adapted
from plain_model import make_model
from torch import nn

from agentgym.actors.network import LOOPBACK
from agentgym.errors import InfraError
from agentgym.generators.select import VllmEngineConfig
from agentgym.generators.vllm import settings
from agentgym.generators.vllm.worker import as_in_checkpoint, load_in_place
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.nccl import NcclStore
from agentgym.weights.shared_memory import SharedMemoryStore


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.filterwarnings("ignore")  # vllm's own
async def test_weights_loaded_in_place_are_those_that_are_sampled_from(generator_config, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(settings, "WORKER_EXTENSION", "in_place_worker.InPlaceWorker")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    old, new = (make_model(tmp_path / str(seed), seed=seed, family="qwen3") for seed in (0, 1))
    engine = VllmEngineConfig().build(replace(generator_config, engine=VllmEngineConfig()), str(old.folder))
    store = NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path)
    await engine.start()
    try:
        requests = [
            GenerateRequest(prompt_ids=tuple(range(3, length)), sampling=SamplingParams(max_tokens=30, seed=length))
            for length in range(10, 60, 10)
        ]
        for version, (model, other) in enumerate(((old, new), (new, old), (old, new))):
            if version == 1:
                await engine.update_weights(version, model.weights())
            elif version == 2:  # received by vLLM's own process, before it is paused
                await store.put(version, model.weights())
                await engine.update_weights(version, await store.get(version))
            completions = await asyncio.gather(*(engine.generate(request) for request in requests))
            for request, completion in zip(requests, completions, strict=True):
                assert model.error(request, completion) < 1e-3
                assert other.error(request, completion) > 0.1
        store_of_adapters = SharedMemoryStore("run", keep=2, root=tmp_path)
        for version in (3, 4):
            adapters, plain = adapted(old, tmp_path / f"plain{version}", seed=version)
            await store_of_adapters.put(version, adapters.items())
            await engine.update_weights(version, await store_of_adapters.get(version))
            completions = await asyncio.gather(*(engine.generate(request) for request in requests))
            assert all(plain.error(*pair) < 1e-3 for pair in zip(requests, completions, strict=True))
            assert all(old.error(*pair) > 0.1 for pair in zip(requests, completions, strict=True))
            (copied,) = await engine._llm.collective_rpc("names_copied")
            assert len([name for name in copied if "_proj" in name]) == 14
            assert ("model.norm.weight" in copied) == (version == 3), "later those with adapters alone"
    finally:
        await engine.close()
        await store.close()


class Quantized(nn.Module):
    quant_method = object()


class Plain(nn.Linear):
    quant_method = type("UnquantizedLinearMethod", (), {})()


def test_a_layer_that_changes_its_weights_after_loading_is_loaded_the_slow_way() -> None:
    assert as_in_checkpoint(nn.Sequential(Plain(2, 2), nn.LayerNorm(2)))
    assert not as_in_checkpoint(nn.Sequential(Plain(2, 2), Quantized()))


def test_experts_are_never_loaded_in_place() -> None:
    """Whatever their method is called: vLLM 0.20 and later give wrong outputs after it (vllm-project/vllm#42821)."""
    experts = Plain(2, 2)
    experts.w13_weight = nn.Parameter(nn.Linear(2, 2).weight.clone())
    assert not as_in_checkpoint(nn.Sequential(Plain(2, 2), experts))
    unquantized = type("Experts", (nn.Module,), {"quant_method": type("UnquantizedFusedMoEMethod", (), {})()})
    assert not as_in_checkpoint(nn.Sequential(Plain(2, 2), unquantized()))


def test_a_weight_that_was_not_loaded_is_an_error_that_names_it() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1, bias=False)

        def load_weights(self, weights):
            return {name for name, _ in weights}

    weights = [("first.weight", None), ("first.bias", None)]
    with pytest.raises(InfraError, match=r"left 1 of its weights as they were: second\.weight"):
        load_in_place(Model(), iter(weights))
    load_in_place(Model(), iter([*weights, ("second.weight", None)]))
