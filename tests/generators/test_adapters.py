"""Every engine samples from its own base with the adapters that a trainer published merged into it."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from plain_adapters import adapted
from plain_model import PlainModel
from torch import Tensor

from agentgym.actors.network import LOOPBACK
from agentgym.generators.config import EngineConfig
from agentgym.generators.engine import ReadsBase
from agentgym.generators.select import NativeEngineConfig, TransformersEngineConfig, VllmEngineConfig
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.adapters import A
from agentgym.weights.nccl import NcclStore
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import OtherBase, WeightStore

REQUESTS = [
    GenerateRequest(prompt_ids=tuple(range(3, length)), sampling=SamplingParams(max_tokens=20, seed=length))
    for length in range(10, 50, 10)
]


@pytest.fixture(
    params=[
        pytest.param(NativeEngineConfig(), id="native"),
        pytest.param(TransformersEngineConfig(), id="transformers"),
        pytest.param(
            VllmEngineConfig(),
            id="vllm",
            marks=[
                pytest.mark.vllm,
                pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
                pytest.mark.filterwarnings("ignore"),  # vllm's own
            ],
        ),
    ]
)
def any_engine(request: pytest.FixtureRequest) -> EngineConfig:
    return request.param


async def test_each_version_is_the_base_with_its_adapters_whatever_the_store(
    any_engine: EngineConfig, generator_config, old_model: PlainModel, new_model: PlainModel, tmp_path: Path
) -> None:
    engine = any_engine.build(replace(generator_config, engine=any_engine), str(old_model.folder))
    stores: dict[str, WeightStore] = {
        "shared_memory": SharedMemoryStore("run", keep=2, root=tmp_path),
        "nccl": NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path),
    }
    await engine.start()
    try:
        versions = {seed: adapted(old_model, tmp_path / str(seed), seed=seed) for seed in (1, 2, 3)}
        if isinstance(engine, ReadsBase):
            await stores["shared_memory"].put(0, versions[3][0].items())
            await engine.read_base(await stores["shared_memory"].get(0))
        for version, (given, plain) in versions.items():
            weights: Iterable[tuple[str, Tensor]] = iter(given.items())  # as torchstore's
            if version > 1:
                store = stores["shared_memory" if version == 2 else "nccl"]
                await store.put(version, given.items())
                weights = await store.get(version)
            await engine.update_weights(version, weights)
            completions = await asyncio.gather(*(engine.generate(request) for request in REQUESTS))
            others = [old_model, *(other for number, (_, other) in versions.items() if number != version)]
            for request, completion in zip(REQUESTS, completions, strict=True):
                assert plain.error(request, completion) < 1e-3
                assert all(other.error(request, completion) > 0.05 for other in others)
                assert {span.version for span in completion.versions} == {version}
        await engine.update_weights(4, new_model.weights())
        completion = await engine.generate(REQUESTS[0])
        assert new_model.error(REQUESTS[0], completion) < 1e-3, "a whole version takes the base's place"
        foreign, _ = adapted(new_model, tmp_path / "foreign", seed=1)
        with pytest.raises(OtherBase, match="is not the one whose adapters the trainer trains"):
            await engine.update_weights(5, foreign.items())
    finally:
        await engine.close()
        for store in stores.values():
            await store.close()


async def test_adapters_that_fit_no_weight_are_refused(
    any_engine: EngineConfig, generator_config, old_model: PlainModel, tmp_path: Path
) -> None:
    given, _ = adapted(old_model, tmp_path / "plain", seed=1)
    del given[next(name for name in given if name.endswith(A))]
    engine = any_engine.build(replace(generator_config, engine=any_engine), str(old_model.folder))
    await engine.start()
    try:
        with pytest.raises(ValueError, match="fits no weight of this model"):
            await engine.update_weights(1, given.items())
    finally:
        await engine.close()
