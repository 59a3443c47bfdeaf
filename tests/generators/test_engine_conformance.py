"""What every generator engine promises, held against a plain forward pass of transformers."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import itertools
import random
from dataclasses import replace

import pytest
import pytest_asyncio
from plain_model import make_model

from agentgym.errors import InfraError
from agentgym.generators.engine import NotLoaded
from agentgym.generators.select import NativeEngineConfig, TransformersEngineConfig, VllmEngineConfig
from agentgym.types import FinishReason, GenerateRequest, SamplingParams, VersionSpan

TOLERANCE = 1e-5  # natural log, float32
VOCAB_SIZE = 300

pytestmark = pytest.mark.asyncio(loop_scope="module")
versions = itertools.count(1)
of_vllm = [
    pytest.mark.vllm,
    pytest.mark.skipif(
        importlib.util.find_spec("vllm") is None, reason="vllm is not installed; docs/services.md says how to get it"
    ),
    pytest.mark.filterwarnings("ignore"),  # vllm's own
]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((NativeEngineConfig(), "qwen3"), id="native"),
        pytest.param((NativeEngineConfig(), "llama"), id="native-llama"),
        pytest.param((TransformersEngineConfig(), "gpt2"), id="transformers"),
        pytest.param((VllmEngineConfig(), "qwen3"), id="vllm", marks=[*of_vllm, pytest.mark.xdist_group("vllm")]),
        pytest.param(
            (VllmEngineConfig(), "llama"), id="vllm-llama", marks=[*of_vllm, pytest.mark.xdist_group("vllm-llama")]
        ),
    ],
)
def case(request):
    """An engine, and the family of the model that it computes."""
    return request.param


@pytest.fixture(scope="module")
def any_config(case, generator_config):
    """The same settings for each engine."""
    return replace(generator_config, engine=case[0])


@pytest.fixture(scope="module")
def old_model(case, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("old"), seed=0, family=case[1])


@pytest.fixture(scope="module")
def new_model(case, tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("new"), seed=1, family=case[1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(any_config, old_model):
    engine = any_config.engine.build(any_config, str(old_model.folder))
    await engine.start()
    yield engine
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(started, old_model):
    """The shared engine, with the old model's weights under a version of its own."""
    await started.update_weights(next(versions), old_model.weights())
    return started


def ask(prompt_ids, **sampling):
    return GenerateRequest(prompt_ids=tuple(prompt_ids), sampling=SamplingParams(**sampling))


def some_requests(count, *, seed=0, longest=60, **sampling):
    """Prompts and completions of mixed lengths."""
    draw = random.Random(seed)
    return [
        ask(
            [draw.randrange(VOCAB_SIZE) for _ in range(draw.randint(1, longest))],
            **{"max_tokens": draw.randint(1, 40), "seed": draw.getrandbits(40), **sampling},
        )
        for _ in range(count)
    ]


async def generate_all(engine, requests):
    async with asyncio.timeout(120):
        return await asyncio.gather(*(engine.generate(request) for request in requests))


async def test_logprobs_of_a_mixed_batch_equal_a_plain_forward_pass(engine, old_model):
    requests = some_requests(30)
    for request, completion in zip(requests, await generate_all(engine, requests), strict=True):
        assert len(completion.completion_ids) == request.sampling.max_tokens
        assert completion.finish_reason is FinishReason.LENGTH
        assert old_model.error(request, completion) < TOLERANCE


@pytest.mark.parametrize(
    "limits",
    [
        {"temperature": 0.6},
        {"temperature": 1.7},
        {"top_k": 5},
        {"top_p": 0.7},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9},
        {"temperature": 0.0},
    ],
    ids=str,
)
async def test_logprobs_are_those_of_the_limited_distribution(engine, old_model, limits):
    requests = some_requests(6, seed=1, max_tokens=30, **limits) + some_requests(3, seed=2)
    for request, completion in zip(requests, await generate_all(engine, requests), strict=True):
        assert old_model.error(request, completion) < TOLERANCE


async def test_temperature_zero_takes_the_likeliest_token(engine, old_model):
    request = ask(range(20), max_tokens=24, temperature=0.0)
    completion = await engine.generate(request)
    context = [*request.prompt_ids]
    for token in completion.completion_ids:
        assert token == old_model.logits(context)[-1].argmax().item()
        context.append(token)


async def test_a_seed_gives_the_same_tokens_alone_and_in_company(engine):
    requests = some_requests(20, seed=3, max_tokens=30)
    together = await generate_all(engine, requests)
    reversed_order = (await generate_all(engine, requests[::-1]))[::-1]
    alone = [await engine.generate(request) for request in requests[:4]]
    ids = [completion.completion_ids for completion in together]
    assert ids == [completion.completion_ids for completion in reversed_order]
    assert ids[:4] == [completion.completion_ids for completion in alone]


async def test_other_seeds_and_no_seed_give_other_tokens(engine):
    requests = [ask(range(10), max_tokens=30, seed=seed) for seed in (1, 2, None, None)]
    sampled = {completion.completion_ids for completion in await generate_all(engine, requests)}
    assert len(sampled) == 4


async def test_a_stop_token_ends_the_completion_and_stays_in_it(engine):
    free = await engine.generate(ask(range(10), max_tokens=40, seed=5))
    place = next(i for i in range(5, 40) if free.completion_ids[i] not in free.completion_ids[:i])
    stop_ids = (free.completion_ids[place], VOCAB_SIZE - 1 if free.completion_ids[place] == 0 else 0)
    stopped = await engine.generate(ask(range(10), max_tokens=40, seed=5, stop_token_ids=stop_ids[:1]))
    assert stopped.completion_ids == free.completion_ids[: place + 1]
    assert stopped.finish_reason is FinishReason.STOP
    assert len(stopped.logprobs) == place + 1


async def test_stop_tokens_of_one_request_do_not_stop_another(engine):
    free = await engine.generate(ask(range(10), max_tokens=20, seed=6))
    every_token = ask(range(10), max_tokens=20, seed=6, stop_token_ids=tuple(range(VOCAB_SIZE)))
    stopped, untouched = await generate_all(engine, [every_token, ask(range(10), max_tokens=20, seed=6)])
    assert stopped.completion_ids == free.completion_ids[:1]
    assert untouched.completion_ids == free.completion_ids


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (ask(range(250), max_tokens=7), "250 tokens and max_tokens 7 exceed generator.max_model_len 256"),
        (ask([], max_tokens=1), "prompt_ids is empty"),
        (ask([VOCAB_SIZE], max_tokens=1), "the vocabulary is"),
        (ask([-1], max_tokens=1), "the vocabulary is"),
    ],
)
async def test_a_request_that_cannot_be_served_is_a_value_error(engine, request_, message):
    with pytest.raises(ValueError, match=message):
        await engine.generate(request_)


async def test_the_longest_context_is_served(engine, old_model):
    request = ask([i % VOCAB_SIZE for i in range(206)], max_tokens=50, seed=1)
    completion = await engine.generate(request)
    assert len(completion.completion_ids) == 50
    assert old_model.error(request, completion) < TOLERANCE


async def test_cancelling_frees_the_place(engine, any_config):
    forever = ask(range(10), max_tokens=240)
    tasks = [asyncio.create_task(engine.generate(forever)) for _ in range(3 * any_config.max_batch)]
    async with asyncio.timeout(60):
        while engine.metrics()["generator/running"] < any_config.max_batch:
            await asyncio.sleep(0.001)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(result, asyncio.CancelledError) for result in results) > any_config.max_batch
        while engine.metrics()["generator/running"] + engine.metrics()["generator/waiting"]:
            await asyncio.sleep(0.001)
        assert len((await engine.generate(ask(range(10), max_tokens=5))).completion_ids) == 5


async def test_the_next_turn_goes_on_after_the_exact_tokens(engine, old_model):
    requests = some_requests(6, seed=7, max_tokens=20)
    for _ in range(3):
        completions = await generate_all(engine, requests)
        for request, completion in zip(requests, completions, strict=True):
            assert old_model.error(request, completion) < TOLERANCE
        requests = [
            ask((*request.prompt_ids, *completion.completion_ids, 1, 2, 3), max_tokens=20, seed=8)
            for request, completion in zip(requests, completions, strict=True)
        ]


async def test_after_every_update_the_new_weights_speak(engine, old_model, new_model):
    prompts = some_requests(6, seed=9, longest=100, max_tokens=25)
    for after, before in [(new_model, old_model), (old_model, new_model), (new_model, old_model)]:
        await generate_all(engine, prompts)  # leaves old keys and values behind
        version = next(versions)
        await engine.update_weights(version, after.weights())
        assert engine.version == version
        for request, completion in zip(prompts, await generate_all(engine, prompts), strict=True):
            assert completion.versions == (VersionSpan(version=version, start=0, end=25),)
            assert after.error(request, completion) < TOLERANCE
            assert before.error(request, completion) > 0.1


async def test_running_requests_go_on_under_the_new_weights_from_the_span_boundary(engine, old_model, new_model):
    requests = some_requests(12, seed=10, longest=40, max_tokens=120)  # more than run at a time
    for delay_s in (0.01, 0.03, 0.1, 0.3, 0.02, 0.05, 0.2, 0.6):  # how quick the machine is, nobody knows
        models = {engine.version: old_model, next(versions): new_model, next(versions): old_model}
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        for version in sorted(models)[1:]:
            await asyncio.sleep(delay_s)
            await engine.update_weights(version, models[version].weights())
        async with asyncio.timeout(60):
            completions = await asyncio.gather(*tasks)
        for request, completion in zip(requests, completions, strict=True):
            check_spans(request, completion, models)
        if any(len(completion.versions) == 3 for completion in completions):
            return
    pytest.fail(f"no request lived through two updates: {[c.versions for c in completions]}")


def check_spans(request, completion, models):
    """Each span's log-probabilities are those of its weights, and where it can be told, of no others."""
    for span in completion.versions:
        right = models[span.version]
        (wrong,) = set(models.values()) - {right}
        assert right.error(request, completion, start=span.start, end=span.end) < TOLERANCE
        if span.end - span.start > 20:
            assert wrong.error(request, completion, start=span.start, end=span.end) > 0.1


async def test_a_tied_head_may_come_or_not(engine, new_model):
    weights = dict(new_model.weights())
    weights["lm_head.weight"] = weights[new_model.embedding]
    await engine.update_weights(next(versions), weights.items())
    request = ask(range(9), max_tokens=9)
    assert new_model.error(request, await engine.generate(request)) < TOLERANCE


async def test_the_event_loop_keeps_turning_while_the_engine_computes(engine):
    tasks = [asyncio.create_task(engine.generate(request)) for request in some_requests(40, max_tokens=80)]
    turns = 0
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0.001)
        turns += 1
    await asyncio.gather(*tasks)
    assert turns > 50


async def test_metrics_count_tokens_and_time(engine):
    before = engine.metrics()
    await generate_all(engine, some_requests(5, max_tokens=10))
    after = engine.metrics()
    assert after["generator/tokens_total"] - before["generator/tokens_total"] == 50
    assert after["generator/busy_s"] > before["generator/busy_s"]
    assert after["generator/running"] == after["generator/waiting"] == 0


@pytest.mark.slow
async def test_weights_that_cannot_be_read_leave_the_engine_as_it_was(any_config, old_model, new_model):
    engine = any_config.engine.build(any_config, str(old_model.folder))
    await engine.start()

    def lost():
        yield new_model.weights()[0]
        raise InfraError("the trainer's process is gone")

    try:
        before = await engine.generate(ask(range(10), max_tokens=20, seed=1))
        running = asyncio.create_task(engine.generate(ask(range(10), max_tokens=240)))
        with pytest.raises(NotLoaded, match="can't be read: the trainer's process is gone"):
            await engine.update_weights(1, lost())
        assert {span.version for span in (await running).versions} == {0} and engine.version == 0
        assert (await engine.generate(ask(range(10), max_tokens=20, seed=1))).completion_ids == before.completion_ids
        await engine.update_weights(1, new_model.weights())
        assert engine.version == 1
    finally:
        await engine.close()


@pytest.mark.slow
async def test_a_failed_update_ends_what_runs_and_refuses_what_comes(any_config, old_model, new_model):
    engine = any_config.engine.build(any_config, str(old_model.folder))
    await engine.start()
    try:
        completions = []

        async def ask_until_refused():  # so the engine is at work when the update fails, however late that is
            while True:
                completions.append(await engine.generate(ask(range(10), max_tokens=240)))

        callers = [asyncio.create_task(ask_until_refused()) for _ in range(4 * any_config.max_batch)]
        async with asyncio.timeout(60):
            while engine.metrics()["generator/running"] < any_config.max_batch:
                await asyncio.sleep(0.001)
        with pytest.raises(ValueError, match="did not come"):
            await engine.update_weights(1, new_model.weights()[1:])
        assert engine.version == 0
        num_completions = len(completions)
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*callers, return_exceptions=True)
            assert {type(end) for end in ends} == {InfraError}
            assert all("the update to version 1 failed" in str(error) for error in ends)
            ended_meanwhile = len(completions) - num_completions
            assert ended_meanwhile <= any_config.max_batch, "those that waited were served all the same"
            with pytest.raises(InfraError, match="the update to version 1 failed"):
                await engine.generate(ask(range(10), max_tokens=2))
            with pytest.raises(InfraError, match="the update to version 1 failed"):
                await engine.update_weights(2, new_model.weights())
    finally:
        await engine.close()
    with pytest.raises(InfraError):
        await engine.generate(ask(range(10), max_tokens=2))


async def test_a_completion_out_of_time_ends_with_what_was_sampled(engine, old_model):
    """However fast the machine, and however busy: the time is changed until it suffices for some but not all."""
    [neighbour] = some_requests(1, max_tokens=40)
    other = asyncio.ensure_future(engine.generate(neighbour))
    request = replace(ask([5, 6, 7], max_tokens=240, seed=1), time_s=0.002)
    completion = None
    async with asyncio.timeout(120):
        while completion is None or completion.finish_reason is not FinishReason.TIME:
            request = replace(request, time_s=request.time_s * (2 if completion is None else 0.7))
            completion = None
            with contextlib.suppress(InfraError):
                completion = await engine.generate(request)
    assert 0 < len(completion.completion_ids) < 240 and completion.queued_s >= 0
    assert old_model.error(request, completion) < TOLERANCE
    assert len((await other).completion_ids) == 40
