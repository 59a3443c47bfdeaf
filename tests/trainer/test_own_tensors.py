"""Tensors of a custom training loop and a loss over logits give transformers' gradients, and mistakes are said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agentgym.errors import UserError
from agentgym.rl.losses.ops import aggregate, compute_kl, compute_logprobs, compute_ratio
from agentgym.rl.tensors import rows_as_samples, scores_as_tensor
from agentgym.trainer.engine import TitanEngine
from agentgym.trainer.own_tensors import add_gradient
from agentgym.types import Sample
from tests.trainer.test_engine import gradients_of, transformers_model

MakeEngine = Callable[..., TitanEngine]


def batch() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Rows of 5 + 4 tokens, as the documents pad them: prompts from the left, responses from the right with 0."""
    draw = torch.Generator().manual_seed(3)
    tokens = torch.randint(1, 40, (3, 9), generator=draw)
    tokens[0, :2] = tokens[1, 7:] = 0
    response = tokens[:, 5:]
    of_tokens = torch.randn(3, 4, generator=draw)
    targets = {
        "response": response,
        "ref_logprobs": of_tokens - 4,
        "advantages": torch.tensor([[1.0], [-0.5], [0.25]]),
        "padding_mask": response != 0,
    }
    return {"tokens": tokens}, targets


def grpo(
    logits: Tensor, response: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor
) -> tuple[Tensor, dict[str, float]]:
    logprobs = compute_logprobs(logits, response)
    kl = compute_kl(logprobs, ref_logprobs, padding_mask)
    ratio = compute_ratio(logprobs, logprobs.detach(), padding_mask)
    return aggregate(0.1 * kl - ratio * advantages, padding_mask), {"kl": kl.mean().item()}


def plain_grpo(
    logits: Tensor, response: Tensor, ref_logprobs: Tensor, advantages: Tensor, padding_mask: Tensor
) -> Tensor:
    """The same, token by token."""
    total, count = torch.zeros(()), 0
    for row in range(len(response)):
        for place in range(4):
            if padding_mask[row, place]:
                logprob = logits[row, 4 + place].log_softmax(-1)[response[row, place]]
                difference = ref_logprobs[row, place] - logprob
                kl = difference.exp() - difference - 1
                total, count = total + 0.1 * kl - (logprob - logprob.detach()).exp() * advantages[row, 0], count + 1
    return total / count


def test_a_step_by_own_tensors_has_the_gradient_of_transformers(make_engine: MakeEngine, model_path: str) -> None:
    inputs, targets = batch()
    engine = make_engine()
    parts = (engine._built, engine._ranks, engine._accumulation, engine._trainer)
    metrics = add_gradient(*parts, [inputs], [targets], grpo)
    model = transformers_model(model_path)
    loss = plain_grpo(model(inputs["tokens"]).logits, **targets)
    loss.backward()  # type: ignore[no-untyped-call]
    assert metrics["train/loss"] == pytest.approx(loss.item(), abs=1e-5) and metrics["loss/kl"] > 0
    expected = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    found = gradients_of(engine)
    assert len(expected) > 5
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-3)


def test_steps_by_own_tensors_and_by_samples_take_turns(make_engine: MakeEngine, samples: list[Sample]) -> None:
    inputs, targets = batch()
    engine = make_engine()
    rows = rows_as_samples(inputs["tokens"], 5)
    before = scores_as_tensor(engine.logprobs(rows, trained_only=True), 5)
    assert before.shape == (3, 4)
    losses = [engine.own_step([inputs], [targets], grpo)["train/loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert engine.train_step(samples)["train/trained_tokens"] and engine.step == 5
    assert not torch.equal(scores_as_tensor(engine.logprobs(rows, trained_only=True), 5), before)


@pytest.mark.parametrize(
    ("ranks", "tokens", "loss", "message"),
    [
        (2, (3, 9), grpo, r"inputs for 2 and targets for 2 ranks, and the trainer has 1"),
        (1, (3, 999), grpo, r"inputs\['tokens'\] is \[3, 999\]; give .* at most trainer\.seq_len"),
        (1, (3, 9), lambda logits, **targets: logits, r"the loss returned \[3, 9, \d+\]; it must be one number"),
    ],
)
def test_tensors_and_losses_of_another_form_are_refused(
    make_engine: MakeEngine, ranks: int, tokens: tuple[int, int], loss: Callable[..., Tensor], message: str
) -> None:
    _, targets = batch()
    engine = make_engine()
    inputs = {"tokens": torch.ones(tokens, dtype=torch.int64)}
    with pytest.raises(UserError, match=message):
        engine.own_step([inputs] * ranks, [targets] * ranks, loss)
    assert all(weight.grad is None for weight in engine._model.parameters()) and engine.step == 0
