"""The rates of this machine, measured with the tiny policy; what they are is not tested, that they are plausible is."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentgym.config import apply_overrides
from agentgym.errors import UserError
from agentgym.families.registry import architecture_of, read_architecture
from agentgym.hooks import PluginRegistry
from agentgym.models.released import RELEASED
from agentgym.models.tiny import policy_path
from agentgym.planning.lengths import decode_context
from agentgym.planning.machine import Gpu, Machine
from agentgym.planning.rates import Rates
from agentgym.planning.simulation import _Learner
from agentgym.planning.splits import best_splits
from agentgym.run.layers import finish_recipe
from agentgym.run.measuring import _Measurement, line_of, measure_rates, measured_lengths, of_one_process
from agentgym.run.placement import wanted_of
from agentgym.run.recipe_files import read_recipe_files
from agentgym.run.settle import settle_alone, settle_served, with_fewest_trainers
from agentgym.types import Completion, FinishReason, GenerateRequest, VersionSpan

APPS = Path(__file__).parents[2] / "apps"


@pytest.mark.parametrize(
    ("small", "large", "rate", "fixed_s"),
    [
        ((100, 0.3), (1100, 1.3), 1000.0, 0.2),
        ((100, 0.1), (1100, 1.1), 1000.0, 0.0),
        ((100, 0.05), (1100, 1.1), 1000 / 1.05, 0.0),  # less than in proportion: no time below zero
        ((100, 1.0), (1100, 1.0001), 1100 / 1.0001, 0.0),  # no line can be drawn through chance
        ((100, 1.2), (1100, 1.1), 1000.0, 0.0),
        ((1100, 1.1), (1100, 1.1), 1000.0, 0.0),
    ],
)
def test_a_step_is_so_many_seconds_and_so_many_for_each_token(small, large, rate, fixed_s) -> None:
    assert line_of(small, large) == (pytest.approx(rate), pytest.approx(fixed_s))


@pytest.mark.parametrize(
    ("context", "limit", "measured_at"),
    [(700, 2048, 700), (100, 2048, 100), (20, 2048, 8 + 32), (2040, 2048, 2048 - 64), (100, 96, 96 - 48 + 32)],
)
def test_the_generator_is_measured_around_the_context_that_is_asked_for(context, limit, measured_at) -> None:
    begin, few, many = measured_lengths(context, limit)
    assert begin + (few + many) // 2 == measured_at
    assert begin + many <= limit and 3 * few == pytest.approx(many, abs=2) and few < many <= 192


def test_what_a_request_takes_besides_its_tokens_is_not_counted_as_sampling() -> None:
    """A request of one token takes as long as thirty of them, and the first batch of each size a minute more."""
    seen: set[int] = set()
    sizes: set[int] = set()

    class Known(_Measurement):
        async def _requests(self, count: int, context: int, tokens: int, salt: int) -> float:
            assert salt not in seen, "a prompt that an earlier request had is not computed"
            seen.add(salt)
            first = count not in sizes
            sizes.add(count)
            return (60.0 if first else 0.0) + context / 10_000 + (tokens / 100 if tokens > 1 else 0.3)

    recipe, _ = finish_recipe({"generator": {"max_batch": 4, "max_model_len": 2048}})
    nothing: Any = None
    prefill, decode = asyncio.run(
        Known(settle_served(recipe), nothing, nothing, nothing, nothing)._generate(500, 64, 192)
    )
    assert decode == ((1, pytest.approx(100)), (4, pytest.approx(400)))
    assert prefill == pytest.approx(4 * 500 / 0.35)


class Recorded:
    """A generator that keeps what it was asked for. left_out: of a completion's tokens."""

    def __init__(self, left_out: int = 0) -> None:
        self.requests: list[GenerateRequest] = []
        self.left_out = left_out

    async def generate(self, request: GenerateRequest) -> Completion:
        self.requests.append(request)
        count = request.sampling.max_tokens - self.left_out
        spans = (VersionSpan(version=0, start=0, end=count),)
        return Completion(
            completion_ids=(7,) * count, logprobs=(0.0,) * count, versions=spans, finish_reason=FinishReason.LENGTH
        )


def measurement(generator: Recorded) -> _Measurement:
    recipe, _ = finish_recipe({"generator": {"max_batch": 128, "max_model_len": 2048}})
    nothing: Any = None
    given: Any = generator
    return _Measurement(settle_served(recipe), nothing, given, nothing, nothing)


def test_no_request_finds_a_part_of_its_prompt_in_the_cache() -> None:
    generator = Recorded()
    asyncio.run(measurement(generator)._generate(100, 8, 24))
    requests, _ = asyncio.run(measurement(generator)._in_flight(100, 8))
    begins = [tuple(request.prompt_ids[:16]) for request in generator.requests]
    assert len({*begins}) == len(begins) and len(requests) == 4 * 128
    assert requests == [(100, request.sampling.max_tokens) for request in generator.requests[-4 * 128 :]]
    assert {tokens for _, tokens in requests} == {*range(1, 16)}


def test_an_engine_that_ends_requests_early_is_not_measured() -> None:
    with pytest.raises(UserError, match=r"sampled 23 of the 24 tokens .* measure with another engine"):
        asyncio.run(measurement(Recorded(left_out=1))._requests(1, 10, 24, 0))


@pytest.mark.slow
@pytest.mark.hostile
def test_a_machines_rates_are_measured_and_a_run_is_planned_by_them(lab, tmp_path: Path) -> None:
    given = {"env": {"name": "math", "options": {"levels": [1]}}, "rollout": {"max_turn_tokens": 32}}
    more = ["loop.groups_per_step=2", "loop.group_size=4", "generator.max_batch=8"]
    recipe, _ = finish_recipe(apply_overrides(given, more))
    registry = PluginRegistry.discover()
    rates = asyncio.run(measure_rates(settle_alone(recipe, tmp_path, print, registry), tmp_path, lab.reporter()))
    assert [size for size, _ in rates.decode] == [1, 4, 8]
    assert len(rates.turns) == 2 * 2 * 4 and all(len(turns) == 1 for turns in rates.turns)
    assert all(0 < sampled <= 32 and new > 8 for [(new, sampled)] in rates.turns)
    mean = decode_context(rates.turns)
    assert 0.1 < rates.cores_scaling <= 1.0
    assert rates.policy == recipe.model.path
    assert rates.context == pytest.approx(max(mean, 40), abs=1)
    assert rates.prefill > 10 and rates.train > 10 and 0 < rates.publish_s + rates.update_s < 30 and rates.host_s > 0
    wanted = wanted_of(recipe, read_architecture(policy_path()))
    [split] = best_splits(wanted, recipe.loop, replace(rates, signal=1.0), Machine(cores=2, memory_gib=64.0))
    mean = sum(sampled for [(_, sampled)] in rates.turns) / len(rates.turns)
    assert split.given and split.forecast.step_s * split.forecast.tokens_per_s == pytest.approx(8 * mean, rel=0.5)


@pytest.mark.parametrize(
    ("files", "gib", "procs"),
    [
        (["grpo/qwen3_4b.yaml"], 139, 1),
        (["grpo/llama3.1_8b.yaml", "presets/gpus/two_in_turns.yaml"], 139, 2),
        (["grpo/llama3.1_8b.yaml", "presets/gpus/eight.yaml", "presets/memory/lean.yaml"], 79, 4),
        (["grpo/llama3.1_8b.yaml"], 79, 2),
    ],
)
def test_a_model_is_measured_with_the_fewest_trainers_into_which_it_fits(
    files: list[str], gib: int, procs: int
) -> None:
    """Where none of its own would do, with all of them: what is missing is said of these."""
    mapping, where = read_recipe_files([APPS / file for file in files])
    recipe = finish_recipe(mapping, where=where)[0]
    model = architecture_of(RELEASED[recipe.model.path], recipe.model.path)
    machine = Machine(gpus=(Gpu(name="some", memory_gib=gib),) * 8, cores=2, memory_gib=2000)
    one = replace(recipe, generator=replace(recipe.generator, replicas=1))
    found = with_fewest_trainers(one, model, machine)
    assert found.trainer.procs == procs <= recipe.trainer.procs
    unchecked = replace(one, trainer=replace(recipe.trainer, check_memory=False))
    assert with_fewest_trainers(unchecked, model, machine).trainer.procs == 1
    assert with_fewest_trainers(one, model, None).trainer.procs == 1


def test_the_rate_of_several_trainers_is_planned_as_it_was_measured() -> None:
    measured = 30000.0
    for procs in (1, 2, 8):
        rates = Rates(decode=((1, 1.0),), prefill=1.0, turns=(((1, 1),),), train=of_one_process(measured, procs))
        assert _Learner(rates, work=None, procs=procs).speed == pytest.approx(measured)
