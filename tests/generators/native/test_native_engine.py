"""What only the native engine promises: failures inside its thread and its updates."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from agentgym.errors import InfraError, UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.engine import NotLoaded
from agentgym.generators.native.engine import NativeEngine
from agentgym.types import GenerateRequest, SamplingParams

ENDLESS = GenerateRequest(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=250))
MANY = 160  # twenty batches: they outlast an update on any machine


@pytest_asyncio.fixture
async def engine(generator_config, old_model):
    engine = NativeEngine(generator_config, str(old_model.folder))
    await engine.start()
    yield engine
    await engine.close()


def tearing(weights):
    yield from weights[:3]
    raise OSError("the store is gone")


class Deleted:
    """Stored weights whose version is deleted while they are read."""

    def __init__(self, weights):
        self._weights = weights
        self.path = Path("/nowhere/1.gpu")

    def entries(self):
        return iter(self)

    def __iter__(self):
        return iter(self._weights)


@pytest.mark.parametrize("change", [Deleted, tearing])
async def test_a_version_that_cannot_be_read_leaves_it_as_it_was(engine, new_model, change):
    with pytest.raises(NotLoaded, match=r"the weights of version 1 can't be read: .*(gone|deleted)"):
        await engine.update_weights(1, change(new_model.weights()))
    completion = await engine.generate(GenerateRequest(prompt_ids=(1, 2), sampling=SamplingParams(max_tokens=3)))
    assert [span.version for span in completion.versions] == [0]


async def test_weights_that_come_twice_are_refused(engine, new_model):
    with pytest.raises(ValueError):
        await engine.update_weights(1, new_model.weights() * 2)
    with pytest.raises(InfraError, match="the update to version 1 failed"):
        await engine.generate(ENDLESS)


async def test_weights_that_give_no_numbers_end_everything_with_the_reason(engine, new_model):
    broken = [(name, weight * float("nan")) for name, weight in new_model.weights()]
    calls = [asyncio.create_task(engine.generate(ENDLESS)) for _ in range(MANY)]
    await asyncio.sleep(0)
    await engine.update_weights(1, broken)
    ends = await asyncio.gather(*calls, return_exceptions=True)
    failed = [end for end in ends if isinstance(end, BaseException)]
    assert len(failed) > 8 and ends[-1] in failed
    assert all(isinstance(error, InfraError) and "not numbers" in str(error) for error in failed)
    assert all(span.version == 0 for end in ends if end not in failed for span in end.versions)
    with pytest.raises(InfraError, match="not numbers"):
        await engine.update_weights(2, new_model.weights())


async def test_a_step_that_runs_out_of_memory_ends_everything_and_says_what_to_lower(engine, monkeypatch):
    def too_much():
        return torch.empty(2**50)

    monkeypatch.setattr(engine._scheduler, "step", too_much)
    with pytest.raises(InfraError, match=r"out of the host's memory .*\n.*\n.*Lower generator\.max_batch \(\d+\)"):
        await engine.generate(ENDLESS)


async def test_closing_ends_what_runs(generator_config, old_model):
    engine = NativeEngine(generator_config, str(old_model.folder))
    await engine.start()
    running = asyncio.create_task(engine.generate(ENDLESS))
    await asyncio.sleep(0)
    await engine.close()
    with pytest.raises(InfraError, match="it is closed"):
        await running
    await engine.close()  # twice is no error


async def test_an_engine_that_is_not_started_refuses(generator_config, old_model):
    engine = NativeEngine(generator_config, str(old_model.folder))
    with pytest.raises(InfraError, match="not started"):
        await engine.generate(ENDLESS)
    assert engine.version == 0
    await engine.close()


async def test_weights_are_copied(engine, old_model, new_model):
    weights = [(name, weight.clone()) for name, weight in new_model.weights()]
    await engine.update_weights(1, weights)
    for _, weight in weights:
        weight.zero_()
    request = GenerateRequest(prompt_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=20))
    assert new_model.error(request, await engine.generate(request)) < 1e-5


def test_a_longer_context_than_the_model_knows_is_the_users_mistake(old_model):
    config = GeneratorConfig(device="cpu", max_model_len=513)
    with pytest.raises(UserError, match="has only 512 positions"):
        NativeEngine(config, str(old_model.folder))


def test_a_gpu_that_is_not_there_is_the_users_mistake(generator_config, old_model):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(UserError, match="torch sees no GPU"):
        NativeEngine(replace(generator_config, device="cuda"), str(old_model.folder))
