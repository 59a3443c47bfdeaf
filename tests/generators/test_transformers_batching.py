"""The transformers engine computes sequences of every family in one batch as plain forward passes compute each."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import write_model

from agentgym.families.registry import families
from agentgym.generators.transformers.alone import Alone
from agentgym.generators.transformers.batching import why_not_together
from agentgym.generators.transformers.cache_rows import CacheRows
from agentgym.generators.transformers.scheduler import PlainScheduler
from agentgym.generators.transformers.together import Together
from agentgym.models.routers import routers_of
from agentgym.types import Completion, GenerateRequest, SamplingParams

QUICK = ("gemma3_text", "gpt_oss", "qwen3_5_text")  # one of each kind: windows, given masks and experts, states
OTHERS = sorted({family.model_types[0] for family in families().values()} - set(QUICK))
PROMPTS = ((5, 9, 14, 3), (5, 9, 14, 3), tuple(range(20, 43)), (7,), tuple(range(60, 69)))


def load(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM
    return factory.from_pretrained(folder).eval()


def ask(prompt: tuple[int, ...], seed: int, *, most: int, continues: bool = False) -> GenerateRequest:
    sampling = SamplingParams(max_tokens=most, temperature=1.0, seed=seed)
    return GenerateRequest(prompt_ids=prompt, sampling=sampling, continues=continues)


def play(scheduler: PlainScheduler, requests: list[GenerateRequest], update: Any = None) -> list[Completion]:
    """update: weights that come after the third token."""
    for ticket, request in enumerate(requests):
        scheduler.submit(ticket, request)
    found: dict[int, Completion] = {}
    steps = 0
    while not scheduler.idle:
        found |= dict(scheduler.step())
        steps += 1
        if update is not None and steps == 3:
            scheduler.set_weights(1, update)
    return [found[ticket] for ticket in range(len(requests))]


def check(models: list[Any], request: GenerateRequest, completion: Completion) -> None:
    """Each span has the log-probabilities of its version's plain forward pass."""
    tokens, begin = (*request.prompt_ids, *completion.completion_ids), len(request.prompt_ids)
    for span in completion.versions:
        logits = models[span.version](input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
        theirs = logits[begin - 1 : -1].log_softmax(-1)[range(len(tokens) - begin), completion.completion_ids]
        ours = torch.tensor(completion.logprobs)
        assert float((theirs - ours)[span.start : span.end].abs().max()) < 1e-4


@pytest.mark.parametrize("model_type", [*QUICK, *(pytest.param(one, marks=pytest.mark.hostile) for one in OTHERS)])
@torch.inference_mode()
def test_sequences_of_a_batch_have_the_numbers_of_each_alone(model_type: str, tmp_path: Path) -> None:
    """More of them than places, of different lengths, through an update, and then next turns of two of them."""
    models = [load(Path(write_model(tmp_path / str(seed), family=model_type, seed=seed))) for seed in (0, 1)]
    scheduler = PlainScheduler(models[0], max_batch=3)
    assert isinstance(scheduler.computing, Together)
    first = [ask(prompt, seed, most=5 + 2 * seed) for seed, prompt in enumerate(PROMPTS)]
    completions = play(scheduler, first, models[1])
    assert [span.end for span in completions[0].versions] == [3, 5]
    computed = scheduler.computing.num_computed
    more = [(*first[i].prompt_ids, *completions[i].completion_ids, *range(30, 30 + i)) for i in (3, 4)]
    second = [ask(prompt, 9, most=4, continues=True) for prompt in more]
    for request, completion in zip(first + second, completions + play(scheduler, second), strict=True):
        check(models, request, completion)
    assert completions[2].versions[-1].version == 1
    # the last token of a turn, what came after it, and 3 more; rows of one pass may compute a few again
    assert scheduler.computing.num_computed - computed <= 2 * (1 + 4 + 3)


@torch.inference_mode()
def test_a_request_that_begins_like_others_continues_a_copy_of_them(tmp_path: Path) -> None:
    model = load(Path(write_model(tmp_path, family="gemma3_text")))  # its windows are shorter than what is shared
    scheduler = PlainScheduler(model, max_batch=4)
    shared = tuple(range(10, 40))
    play(scheduler, [ask((*shared, 50), 1, most=6)])
    computed = scheduler.computing.num_computed
    requests = [ask((*shared, last, last), last, most=4) for last in (60, 61)] + [ask((*shared, 60, 60), 5, most=4)]
    for request, completion in zip(requests, play(scheduler, requests), strict=True):
        check([model], request, completion)
    assert scheduler.computing.num_computed - computed == 2 * 2 + 3 * 3  # equal prompts once, and then each its own


@pytest.mark.parametrize("model_type", ["gpt_oss", pytest.param("qwen3_moe", marks=pytest.mark.hostile)])
@torch.inference_mode()
def test_routes_follow_their_rows(model_type: str, tmp_path: Path) -> None:
    model = load(Path(write_model(tmp_path, family=model_type)))
    scheduler = PlainScheduler(model, max_batch=3, routers_of=lambda one: routers_of(one.model, tmp_path))  # type: ignore[arg-type]
    first = [ask(prompt, seed, most=5 + 2 * seed) for seed, prompt in enumerate(PROMPTS)]
    completions = play(scheduler, first)
    more = [(*one.prompt_ids, *done.completion_ids, 30) for one, done in zip(first, completions, strict=True)]
    second = [ask(prompt, 9, most=4, continues=True) for prompt in more]
    completions += play(scheduler, second)
    for request, completion in zip(first + second, completions, strict=True):
        routers = routers_of(model.model, tmp_path)
        routers.record()
        model(input_ids=torch.tensor([[*request.prompt_ids, *completion.completion_ids[:-1]]]), use_cache=False)
        assert completion.routes is not None
        assert torch.tensor(array("H", completion.routes.ids)).view(-1, 4).tolist() == routers.taken().tolist()


@torch.inference_mode()
def test_a_model_that_a_batch_computes_wrong_is_computed_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load(Path(write_model(tmp_path)))
    forward = model.forward

    def without_positions(**given: Any) -> Any:
        return forward(**{name: value for name, value in given.items() if name != "attention_mask"})

    model.forward = without_positions
    scheduler = PlainScheduler(model, max_batch=3)
    assert isinstance(scheduler.computing, Alone) and "logits in a batch differ from those alone by" in caplog.text
    requests = [ask(prompt, seed, most=4) for seed, prompt in enumerate(PROMPTS)]
    for request, completion in zip(requests, play(scheduler, requests), strict=True):
        check([model], request, completion)


@torch.inference_mode()
def test_frequencies_of_one_kind_of_layers_that_follow_the_longest_row_are_found(tmp_path: Path) -> None:
    model = load(Path(write_model(tmp_path, family="gemma3_text")))
    assert not why_not_together(model, CacheRows(model.config))
    model.config.rope_parameters["full_attention"]["rope_type"] = "dynamic"
    assert "(dynamic)" in why_not_together(model, CacheRows(model.config))
