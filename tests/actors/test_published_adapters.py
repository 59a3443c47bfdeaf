"""Generators in processes of their own whose trainer publishes adapters alone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from in_process import InProcess
from plain_adapters import adapted
from plain_model import make_model
from scripted import Scripted, fingerprint, scripted_tokens
from waiting import until

from agentgym.actors.runtime import Runtime
from agentgym.generators.config import EngineConfig, GeneratorConfig
from agentgym.generators.select import NativeEngineConfig
from agentgym.generators.service import GeneratorService
from agentgym.types import GenerateRequest, SamplingParams
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import OtherBase

pytestmark = pytest.mark.slow
REQUEST = GenerateRequest(prompt_ids=(3, 4, 5), sampling=SamplingParams(max_tokens=20, seed=1))


@asynccontextmanager
async def generators(
    engine: EngineConfig, model: Path, folder: Path, *, replicas: int = 1
) -> AsyncIterator[tuple[GeneratorService, SharedMemoryStore]]:
    config = GeneratorConfig(
        engine=engine, replicas=replicas, device="cpu", max_model_len=256, probe_every_s=0.3, probe_timeout_s=30
    )
    async with Runtime(log_dir=folder / "logs", launcher=InProcess()) as runtime:
        store = SharedMemoryStore("test", root=folder)
        service = GeneratorService(config=config, store=store, model_path=str(model), runtime=runtime)
        try:
            await service.start()
            yield service, store
        finally:
            await service.close()
            await store.close()


async def test_a_replica_that_comes_back_merges_them_and_another_base_ends_the_update(tmp_path: Path) -> None:
    own, other = (make_model(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    given, plain = adapted(own, tmp_path / "plain", seed=1)
    async with generators(NativeEngineConfig(), own.folder, tmp_path, replicas=2) as (service, store):
        await store.put(1, given.items())
        await service.update_weights(1)
        victim = service.pids()[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(service.pids()) == 2 and victim not in service.pids())
        for completion in await service.generate_everywhere(REQUEST):
            assert plain.error(REQUEST, completion) < 1e-4 < own.error(REQUEST, completion)
        await store.put(2, adapted(other, tmp_path / "foreign", seed=1)[0].items())
        before = service.pids()
        with pytest.raises(OtherBase, match="is not the one whose adapters the trainer trains"):
            await service.update_weights(2)
        assert service.pids() == before, "a replacement could do no better"


async def test_an_engine_that_knows_no_adapters_is_given_whole_models(tmp_path: Path) -> None:
    model = make_model(tmp_path / "model", seed=0)
    given, plain = adapted(model, tmp_path / "plain", seed=1)
    async with generators(Scripted(), model.folder, tmp_path) as (service, store):
        await store.put(1, given.items())
        await service.update_weights(1)
        completion = await asyncio.wait_for(service.generate(REQUEST), 60)
    merged = {name: weight for name, weight in plain.model.state_dict().items() if name != "lm_head.weight"}
    from agentgym.weights.adapters import Base

    whole = dict(Base(model.folder).whole(given.items(), merged["model.norm.weight"].device))
    assert {*whole} == {*merged}
    mark = fingerprint(whole.items())
    assert completion.completion_ids == scripted_tokens(REQUEST.prompt_ids, 1, mark, 20, Scripted().vocab_size)
