"""Chunked log-probabilities equal log_softmax in value, entropy and gradient, and PackedSDPA sees one document."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from agentgym.trainer.attention import PackedSDPA, packed_mask
from agentgym.trainer.head import ChunkedLogProb, LogProbHead, Scoring, _Shard

COUNT, DIM, VOCAB = 37, 8, 50


def make_inputs() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    hidden = torch.randn(COUNT, DIM, dtype=torch.float32, requires_grad=True)
    weight = torch.randn(VOCAB, DIM, requires_grad=True)
    return hidden, weight, torch.randint(0, VOCAB, (COUNT,)), torch.randn(COUNT)


@pytest.mark.parametrize("chunk", [1, 5, 37, 1000])
def test_chunked_logprobs_equal_log_softmax_with_its_gradient(chunk: int) -> None:
    hidden, weight, labels, upstream = make_inputs()
    logprobs, entropy = ChunkedLogProb.apply(hidden, weight, labels, chunk, _Shard(None, VOCAB))
    (logprobs * upstream).sum().backward()
    plain_hidden, plain_weight, _, _ = make_inputs()
    plain = torch.log_softmax(plain_hidden @ plain_weight.t(), 1)
    picked = plain.gather(1, labels[:, None])[:, 0]
    (picked * upstream).sum().backward()
    torch.testing.assert_close(logprobs, picked, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, -(plain.exp() * plain).sum(1), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden.grad, plain_hidden.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weight.grad, plain_weight.grad, atol=1e-5, rtol=1e-5)
    assert not entropy.requires_grad


def test_no_wanted_token_is_no_error() -> None:
    hidden, weight, labels, _ = make_inputs()
    logprobs, _ = ChunkedLogProb.apply(hidden[:0], weight, labels[:0], 4, _Shard(None, VOCAB))
    logprobs.sum().backward()
    assert weight.grad is not None
    assert weight.grad.count_nonzero() == 0


def test_the_head_scores_the_wanted_entries_at_its_temperature() -> None:
    torch.manual_seed(0)
    config = LogProbHead.Config(in_features=DIM, out_features=VOCAB, bias=False, scoring=Scoring(temperature=0.7))
    head = LogProbHead(config)
    hidden = torch.randn(2, 6, DIM)
    entries, labels = torch.tensor([1, 4, 9]), torch.tensor([3, 0, 49])
    logits = head(hidden)
    head.targets = (entries, labels)
    expected = torch.log_softmax(logits.flatten(0, 1)[entries] / 0.7, 1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(head(hidden)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [5, 1000])
def test_logprobs_of_bfloat16_states_are_those_of_their_exact_logits(chunk: int) -> None:
    """Sums of 512 products that are rounded to the 8 bits of bfloat16 differ in the second digit."""
    torch.manual_seed(0)
    head = LogProbHead(
        LogProbHead.Config(in_features=512, out_features=300, bias=False, scoring=Scoring(chunk=chunk, temperature=0.7))
    )
    head.weight = torch.nn.Parameter((torch.randn(300, 512) / 8).bfloat16())
    hidden, labels = torch.randn(1, COUNT, 512).bfloat16().requires_grad_(), torch.randint(0, 300, (COUNT,))
    head.targets = (torch.arange(COUNT), labels)
    logprobs, entropy = head(hidden)
    states, weight = hidden.detach()[0].double().requires_grad_(), head.weight.detach().double()
    exact = torch.log_softmax(states @ weight.t() / 0.7, 1)
    picked = exact.gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), picked, atol=2e-5, rtol=0)
    torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(1), atol=2e-5, rtol=0)
    logprobs.sum().backward()
    picked.sum().backward()
    assert hidden.grad is not None and states.grad is not None
    torch.testing.assert_close(hidden.grad[0].double(), states.grad, atol=2e-2, rtol=2e-2)


def test_a_token_attends_to_its_own_document_up_to_itself() -> None:
    positions = torch.tensor([[0, 1, 2, 0, 1, 0, 0], [0, 0, 1, 2, 3, 4, 5]])
    mask = packed_mask(positions, torch.float32)
    assert mask is not None
    documents = [[0, 0, 0, 1, 1, 2, 3], [0, 1, 1, 1, 1, 1, 1]]
    expected = [[[row[k] == row[q] and k <= q for k in range(7)] for q in range(7)] for row in documents]
    assert (mask[:, 0] == 0).tolist() == expected
    assert mask[mask != 0].isneginf().all()


@pytest.mark.parametrize(
    ("positions", "is_plain"),
    [
        ([[0, 1, 2, 3]], True),
        ([[0, 1, 0, 0]], True),  # a document, then padding
        ([[0, 0, 0, 0]], True),  # all padding
        ([[0, 1, 0, 1]], False),
        ([[0, 0, 1, 2]], False),
        ([[0, 1, 2, 3], [0, 1, 0, 1]], False),
    ],
)
def test_a_mask_is_made_only_where_rows_hold_several_documents(positions: list[list[int]], is_plain: bool) -> None:
    assert (packed_mask(torch.tensor(positions), torch.float32) is None) == is_plain


def test_packed_attention_equals_attention_of_each_document_alone() -> None:
    torch.manual_seed(0)
    attention = PackedSDPA(PackedSDPA.Config())
    query = torch.randn(1, 9, 4, 8)
    key, value = torch.randn(1, 9, 2, 8), torch.randn(1, 9, 2, 8)
    mask = packed_mask(torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4]]), torch.float32)
    packed = attention(query, key, value, attention_masks=mask, enable_gqa=True)
    for part in (slice(0, 4), slice(4, 9)):
        alone = attention(query[:, part], key[:, part], value[:, part], enable_gqa=True)
        torch.testing.assert_close(packed[:, part], alone)


@pytest.mark.parametrize("chunk", [5, 1000])
def test_the_gradient_of_the_entropy_is_that_of_log_softmax_where_a_loss_asks_for_it(chunk: int) -> None:
    hidden, weight, labels, upstream = make_inputs()
    of_entropy = torch.randn(COUNT)
    logprobs, entropy = ChunkedLogProb.apply(hidden, weight, labels, chunk, _Shard(None, VOCAB), 0.7, True)
    (logprobs * upstream + entropy * of_entropy).sum().backward()
    plain_hidden, plain_weight, _, _ = make_inputs()
    plain = torch.log_softmax(plain_hidden @ plain_weight.t() / 0.7, 1)
    plain_entropy = -(plain.exp() * plain).sum(1)
    (plain.gather(1, labels[:, None])[:, 0] * upstream + plain_entropy * of_entropy).sum().backward()
    torch.testing.assert_close(hidden.grad, plain_hidden.grad, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(weight.grad, plain_weight.grad, atol=1e-5, rtol=1e-5)
