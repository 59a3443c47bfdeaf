"""Tensors of a custom training loop and a loss over logits give transformers' gradients, and mistakes are said."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from agentgym.errors import UserError
from agentgym.rl.losses.ops import aggregate, compute_kl, compute_logprobs, compute_ratio
from agentgym.rl.tensors import rows_as_samples, scores_as_tensor
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.own_tensors import Batch, add_gradient
from agentgym.types import Sample
from tests.trainer.test_engine import gradients_of, transformers_model

MakeEngine = Callable[..., TrainingEngine]


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
    for wrong, given in ((inputs["tokens"], 9), (inputs["tokens"][0], 5)):
        with pytest.raises(UserError, match=r"token ids are \[.*9\]; give \[rows, tokens of a row\]"):
            rows_as_samples(wrong, given)
    losses = [engine.own_step([inputs], [targets], grpo)["train/loss"] for _ in range(4)]
    assert losses[-1] < losses[0]
    assert engine.train_step(samples)["train/trained_tokens"] and engine.step == 5
    assert not torch.equal(scores_as_tensor(engine.logprobs(rows, trained_only=True), 5), before)


ROWS = {"tokens": torch.ones((3, 9), dtype=torch.int64)}


@pytest.mark.parametrize(
    ("inputs", "targets", "loss", "message"),
    [
        ([ROWS, ROWS], [{}, {}], grpo, r"got 2 as inputs, and the trainer has 1 rank"),
        (ROWS, batch()[1], grpo, r"got a dict as inputs, .* give a list with a dictionary of tensors for each"),
        ([ROWS], [{"beta": 0.1}], grpo, r"targets of a rank is {'beta': 0.1}; give a dictionary of tensors by name"),
        (
            [{"tokens": torch.ones(3, 999)}],
            [{}],
            grpo,
            r"inputs\['tokens'\] is \[3, 999\]; .* at most trainer\.seq_len",
        ),
        ([{"tokens": torch.ones(0, 9)}], [{}], grpo, r"inputs\['tokens'\] is \[0, 9\]; give token ids as"),
        ([{"tokens": torch.ones(3, 9)}], [{}], grpo, r"has torch\.float32 from 1\.0 to 1\.0; token ids are integers"),
        (
            [{"tokens": ROWS["tokens"] * -100}],
            [{}],
            grpo,
            r"has torch\.int64 from -100 to -100; .* pad with one of them",
        ),
        ([ROWS], [{}], lambda logits: logits, r"the loss returned \[3, 9, \d+\]; it must be one number"),
        ([ROWS], [{}], lambda logits: (logits.mean(), {}, 1), r"the loss returned tuple; it must be one number"),
        ([ROWS], [{}], lambda logits: (logits.mean(), {"kl": logits}), r"metrics must be a dictionary of numbers"),
    ],
)
def test_tensors_and_losses_of_another_form_are_refused(
    make_engine: MakeEngine, inputs: Batch, targets: Batch, loss: Callable[..., Tensor], message: str
) -> None:
    engine = make_engine()
    with pytest.raises(UserError, match=message):
        engine.own_step(inputs, targets, loss)
    assert all(weight.grad is None for weight in engine._model.parameters()) and engine.step == 0
