"""Which rows sequences get, what contexts they share, and that sharing changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from agentgym.errors import InfraError
from agentgym.families.registry import read_architecture
from agentgym.generators.native.cache import KVCache
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import fuse
from agentgym.models.safetensors import read_folder
from agentgym.types import FinishReason, GenerateRequest, SamplingParams

CPU = torch.device("cpu")


@pytest.fixture
def scheduler(old_model):
    return make_scheduler(old_model)


def make_scheduler(plain, *, max_batch=8, max_padded_tokens=256):
    shape = read_architecture(plain.folder)
    model = DecoderModel(shape, fused(plain), max_len=256)
    cache = KVCache(shape, rows=2 * max_batch, max_len=256, device=CPU, dtype=torch.float32)
    return Scheduler(model, cache, max_batch=max_batch, max_padded_tokens=max_padded_tokens)


def fused(plain):
    return fuse(read_architecture(plain.folder), read_folder(plain.folder), device=CPU, dtype=torch.float32)


def ask(prompt_ids, *, max_tokens=10, seed=0):
    return GenerateRequest(prompt_ids=tuple(prompt_ids), sampling=SamplingParams(max_tokens=max_tokens, seed=seed))


def run(scheduler, requests):
    """Submit all, step to the end; completions in the order of the requests."""
    for ticket, request in enumerate(requests):
        scheduler.submit(ticket, request)
    ended = {}
    while not scheduler.idle:
        ended |= dict(scheduler.step())
    return [ended[ticket] for ticket in range(len(requests))]


def random_prompt(length, *, seed):
    draw = random.Random(seed)
    return [draw.randrange(300) for _ in range(length)]


def check(plain, requests, completions):
    for request, completion in zip(requests, completions, strict=True):
        assert plain.error(request, completion) < 1e-5


def test_a_prompt_that_comes_eight_times_is_computed_once(scheduler, old_model):
    prompt = random_prompt(100, seed=0)
    requests = [ask(prompt, seed=seed) for seed in range(8)]
    completions = run(scheduler, requests)
    assert scheduler.totals.computed_tokens == 100 + 7  # of each other one only the last token
    assert len({completion.completion_ids for completion in completions}) == 8
    check(old_model, requests, completions)


def test_prompts_with_a_common_beginning_compute_it_once(scheduler, old_model):
    system = random_prompt(60, seed=1)
    requests = [ask(system + random_prompt(20, seed=10 + i), seed=i) for i in range(6)]
    completions = run(scheduler, requests)
    assert scheduler.totals.computed_tokens == 60 + 6 * 20
    check(old_model, requests, completions)


def test_the_next_turn_computes_only_what_is_new(scheduler, old_model):
    first = [ask(random_prompt(50, seed=i), seed=i) for i in range(8)]
    replies = run(scheduler, first)
    before = scheduler.totals.computed_tokens
    turns = [
        ask([*request.prompt_ids, *completion.completion_ids, 5, 6, 7], seed=9)
        for request, completion in zip(first, replies, strict=True)
    ]
    completions = run(scheduler, turns)
    assert scheduler.totals.computed_tokens - before == 8 * (1 + 3)  # the last sampled token, and the new ones
    check(old_model, turns, completions)


def test_new_weights_make_every_shared_context_void(scheduler, old_model, new_model):
    requests = [ask(random_prompt(50, seed=0), seed=seed) for seed in range(3)]
    check(old_model, requests, run(scheduler, requests))
    scheduler.set_weights(1, fused(new_model))
    completions = run(scheduler, requests)
    check(new_model, requests, completions)
    assert {span.version for completion in completions for span in completion.versions} == {1}


def test_an_update_after_every_step_gives_spans_of_one_token(scheduler, old_model, new_model):
    request = ask(random_prompt(30, seed=0), max_tokens=6)
    scheduler.submit(0, request)
    ended, version = [], 0
    while not ended:
        ended = scheduler.step()
        version += 1
        scheduler.set_weights(version, fused(new_model if version % 2 else old_model))
    completion = ended[0][1]
    for span in completion.versions:
        model = new_model if span.version % 2 else old_model
        assert model.error(request, completion, start=span.start, end=span.end) < 1e-5
    # the first step computes the context and goes on to a second token; each later one does the same
    assert [(span.start, span.end) for span in completion.versions] == [(0, 2), (2, 4), (4, 6)]


def test_long_random_traffic_stays_right(old_model):
    """Joins, ends, cancellations, shared prefixes, moved rows: every completion is checked."""
    scheduler = make_scheduler(old_model, max_batch=5, max_padded_tokens=64)
    draw = random.Random(0)
    stems = [random_prompt(draw.randint(1, 40), seed=i) for i in range(3)]
    requests, ended = {}, {}
    for ticket in range(60):
        prompt = draw.choice(stems) + random_prompt(draw.randint(1, 30), seed=draw.getrandbits(8))
        if ended and draw.random() < 0.4:
            other = draw.choice(list(ended))
            prompt = [*requests[other].prompt_ids, *ended[other].completion_ids, 3][:150]
        requests[ticket] = ask(prompt, max_tokens=draw.randint(1, 30), seed=ticket)
        scheduler.submit(ticket, requests[ticket])
        for _ in range(draw.randint(0, 6)):
            ended |= dict(scheduler.step())
        open_tickets = [ticket for ticket in requests if ticket not in ended]
        if open_tickets and draw.random() < 0.15:
            cancelled = draw.choice(open_tickets)
            scheduler.cancel(cancelled)
            del requests[cancelled]
    while not scheduler.idle:
        ended |= dict(scheduler.step())
    assert ended.keys() == requests.keys()
    check(old_model, requests.values(), [ended[ticket] for ticket in requests])


def test_never_more_than_max_batch_run(old_model):
    scheduler = make_scheduler(old_model, max_batch=3)
    for ticket in range(10):
        scheduler.submit(ticket, ask([ticket + 1], max_tokens=4))
    scheduler.step()
    assert (scheduler.num_running, scheduler.num_waiting) == (3, 7)
    scheduler.cancel(0)
    scheduler.cancel(9)
    assert (scheduler.num_running, scheduler.num_waiting) == (2, 6)
    scheduler.step()
    assert (scheduler.num_running, scheduler.num_waiting) == (3, 5)


def test_next_turns_find_their_contexts_although_more_new_conversations_wait_than_the_cache_holds(old_model):
    scheduler = make_scheduler(old_model, max_batch=2)  # a cache of 4 rows
    begun = {ticket: ask(random_prompt(40, seed=ticket), max_tokens=5) for ticket in range(12)}
    for ticket, request in begun.items():
        scheduler.submit(ticket, request)
    num_ended = 0
    while not scheduler.idle:
        for ticket, completion in scheduler.step():
            num_ended += 1
            if (request := begun.pop(ticket, None)) is not None:
                turn = ask([*request.prompt_ids, *completion.completion_ids, 7, 8], max_tokens=5)
                scheduler.submit(100 + ticket, replace(turn, continues=True))
    assert num_ended == 24
    assert scheduler.totals.computed_tokens == 12 * (40 + 1 + 2), "no context was computed twice"
    assert scheduler.metrics()["generator/kv_share"] > 0.1


def test_a_request_cancelled_between_an_update_and_the_next_step_leaves_every_queue(scheduler, old_model, new_model):
    requests = [ask(random_prompt(20, seed=seed), seed=seed) for seed in range(2)]
    for ticket, request in enumerate(requests):
        scheduler.submit(ticket, request)
    scheduler.step()
    scheduler.set_weights(1, fused(new_model))  # now the contexts of both wait to be computed again
    scheduler.cancel(0)
    ended = {}
    while not scheduler.idle:
        ended |= dict(scheduler.step())
    (span, _) = ended[1].versions
    assert ended.keys() == {1}
    assert new_model.error(requests[1], ended[1], start=span.end) < 1e-5


def test_sequences_that_move_to_other_rows_sample_as_if_they_ran_alone(old_model):
    """Eighteen end early, so the last four move to the front, with all that belongs to them."""
    settings = [
        {"seed": 1},
        {"seed": 2, "temperature": 0.5},
        {"seed": 3, "top_k": 3},
        {"seed": 4, "top_p": 0.5, "stop_token_ids": tuple(range(0, 300, 20))},
    ]
    requests = [ask([50 + i], max_tokens=3, seed=i) for i in range(18)]
    for place, limits in enumerate(settings):
        requests.append(
            GenerateRequest(
                prompt_ids=tuple(random_prompt(20, seed=place)),
                sampling=SamplingParams(max_tokens=60 + place, **limits),
            )
        )
    completions = run(make_scheduler(old_model, max_batch=22), requests)
    check(old_model, requests, completions)
    for request, completion in list(zip(requests, completions, strict=True))[18:]:
        alone = run(make_scheduler(old_model), [request])[0]
        assert alone.completion_ids == completion.completion_ids
        assert alone.finish_reason == completion.finish_reason
    assert completions[-1].finish_reason is FinishReason.STOP
    assert len(completions[-1].completion_ids) > 5  # it moved before it stopped


def test_weights_that_give_no_numbers_are_an_infrastructure_error(scheduler, old_model):
    weights = fused(old_model)
    weights.norm.fill_(float("nan"))
    scheduler.set_weights(1, weights)
    scheduler.submit(0, ask([1, 2, 3]))
    with pytest.raises(InfraError, match="version 1 give log-probabilities that are not numbers"):
        scheduler.step()


def test_the_result_of_a_sequence_does_not_depend_on_how_passes_are_cut(old_model):
    requests = [ask(random_prompt(5 + 9 * i, seed=i), seed=i) for i in range(8)]
    results = [
        [completion.completion_ids for completion in run(make_scheduler(old_model, max_padded_tokens=size), requests)]
        for size in (1, 50, 10_000)
    ]
    assert results[0] == results[1] == results[2]
    assert np.unique([len(ids) for ids in results[0]]).tolist() == [10]


def test_a_completion_whose_time_is_over_ends_with_what_was_sampled(old_model):
    """The second waits for the only row: its time begins with its first token."""
    scheduler = make_scheduler(old_model, max_batch=1)
    requests = [ask(random_prompt(20, seed=n), seed=n) for n in range(3)]
    requests[1] = replace(requests[1], time_s=0.0)
    first, second, third = run(scheduler, requests)
    check(old_model, requests, [first, second, third])
    assert (second.finish_reason, len(second.completion_ids)) == (FinishReason.TIME, 1)
    assert [len(c.completion_ids) for c in (first, third)] == [10, 10]
    assert first.finish_reason is third.finish_reason is FinishReason.LENGTH
    assert 0 < first.queued_s < second.queued_s < third.queued_s
