"""Bit for bit: what a sequence gets does not depend on what else the engine computes."""

from __future__ import annotations

import random

import pytest
import torch

from agentgym.errors import UserError
from agentgym.families.registry import read_architecture
from agentgym.generators.native.invariant import InvariantModel, check_invariance, invariant_cache
from agentgym.generators.native.model import DecoderModel
from agentgym.generators.native.scheduler import Scheduler
from agentgym.generators.native.weights import fuse
from agentgym.models.safetensors import read_folder
from agentgym.types import GenerateRequest, SamplingParams


@pytest.fixture(scope="module")
def loaded(old_model):
    shape = read_architecture(old_model.folder)
    weights = fuse(shape, read_folder(old_model.folder), device=torch.device("cpu"), dtype=torch.float32)
    return shape, weights


def make_scheduler(shape, weights, max_batch):
    model = InvariantModel(shape, weights, max_len=256)
    cache = invariant_cache(shape, rows=2 * max_batch, max_len=256, like=weights.embedding)
    return Scheduler(model, cache, max_batch=max_batch, max_padded_tokens=256)


def request(number, *, turn=()):
    draw = random.Random(number // 3)  # three of each prompt, which share their prefix
    prompt = tuple(draw.randrange(300) for _ in range(draw.randrange(5, 150)))
    temperature, top_p = (1.0, 1.0) if number % 2 else (0.7, 0.9)
    sampling = SamplingParams(max_tokens=8 + number % 7, seed=number, temperature=temperature, top_p=top_p)
    return GenerateRequest(prompt_ids=prompt + turn, sampling=sampling)


def answers(scheduler, requests, *, at_once):
    """In the order of the requests, of which `at_once` are under way at a time."""
    waiting, ended = list(enumerate(requests)), {}
    while len(ended) < len(requests):
        while waiting and scheduler.num_running + scheduler.num_waiting < at_once:
            scheduler.submit(*waiting.pop(0))
        for ticket, completion in scheduler.step():
            ended[ticket] = (completion.completion_ids, completion.logprobs)
    return [ended[ticket] for ticket in range(len(requests))]


@torch.inference_mode()
def test_a_completion_is_the_same_alone_and_among_others_and_after_a_turn_that_is_in_the_cache(loaded):
    requests = [request(number) for number in range(6)]
    alone = answers(make_scheduler(*loaded, 1), requests, at_once=1)
    crowded = make_scheduler(*loaded, 8)
    assert answers(crowded, requests[::-1], at_once=8)[::-1] == alone
    turns = [request(number, turn=(*ids, 7, 8)) for number, (ids, _) in enumerate(alone)]
    assert answers(crowded, turns, at_once=5) == answers(make_scheduler(*loaded, 1), turns, at_once=1)


@torch.inference_mode()
def test_the_check_finds_a_forward_pass_that_depends_on_the_others(loaded):
    shape, weights = loaded
    check_invariance(InvariantModel(shape, weights, max_len=256))
    with pytest.raises(UserError, match=r"leave out loop\.deterministic"):
        check_invariance(DecoderModel(shape, weights, max_len=256))
