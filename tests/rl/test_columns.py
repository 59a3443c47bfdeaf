"""Samples as arrays are the samples, wherever they are read."""

from __future__ import annotations

import pickle
import random
from dataclasses import fields, replace

import pytest
import torch

from agentgym.rl.columns import SampleColumns
from agentgym.rl.packing import pack
from agentgym.routes import Routes
from agentgym.trainer.journal import Batch, _rows, _rows_of_columns, decode, encode
from agentgym.types import Sample


def draw(seed: int, count: int, optional: tuple[str, ...] = ()) -> list[Sample]:
    numbers = random.Random(seed)
    found = []
    for index in range(count):
        length = numbers.randrange(2, 40)
        mask = (0.0, *(float(numbers.random() < 0.7) for _ in range(length - 1)))
        columns: dict[str, object] = {
            name: tuple(numbers.uniform(-9, 9) for _ in range(length)) for name in ("logprobs", *optional)
        }
        if "routes" in optional:
            columns["routes"] = Routes(width=3, ids=numbers.randbytes(6 * length))
        found.append(
            Sample(
                sample_id=f"s{seed}-{index}",
                token_ids=tuple(numbers.randrange(2**31) for _ in range(length)),
                loss_mask=mask,
                advantages=tuple(numbers.gauss(0, 1) * one for one in mask),
                versions=tuple(numbers.randrange(9) if one else -1 for one in mask),
                **columns,
            )
        )
    return found


OPTIONAL = [(), ("ref_logprobs",), ("ref_logprobs", "old_logprobs", "returns"), ("routes",)]


@pytest.mark.parametrize("optional", OPTIONAL)
def test_they_are_what_they_were_made_of(optional: tuple[str, ...]) -> None:
    samples = draw(1, 7, optional)
    columns = SampleColumns.of(samples)
    assert isinstance(columns, SampleColumns) and SampleColumns.of(columns) is columns
    sent = pickle.loads(pickle.dumps(columns))
    for found in (columns, sent):
        assert [*found] == samples == found and len(found) == 7
        assert [found[index] for index in (0, 3, -1)] == [samples[index] for index in (0, 3, -1)]
        assert found[2:5] == samples[2:5]
        assert {type(value) for value in found[0].token_ids} == {int}
    assert columns != draw(2, 7, optional) and columns != samples[:-1]
    with pytest.raises(IndexError):
        columns[7]


def test_samples_that_differ_in_what_they_have_stay_a_list() -> None:
    samples = draw(1, 3)
    samples[1] = replace(samples[1], returns=samples[1].logprobs)
    assert SampleColumns.of(samples) is samples and not SampleColumns.of([])


@pytest.mark.parametrize("optional", OPTIONAL)
@pytest.mark.parametrize("attention", [None, 64.0])
def test_they_are_packed_alike(optional: tuple[str, ...], attention: float | None) -> None:
    for seed in range(5):
        samples = draw(seed, 20, optional)
        one, other = (
            pack(given, seq_len=64, rows_divisible_by=2, attention_break_even=attention)
            for given in (samples, SampleColumns.of(samples))
        )
        for field in fields(one):
            expected, found = getattr(one, field.name), getattr(other, field.name)
            if isinstance(expected, torch.Tensor):
                assert expected.dtype == found.dtype and torch.equal(expected, found), field.name
            else:
                assert expected == found, field.name
        assert one.token_ids.sum() == sum(sum(sample.token_ids) for sample in samples)
        assert one.has_reference == ("ref_logprobs" in optional)
        assert one.routes.shape[2] == (3 if "routes" in optional else 0)


@pytest.mark.parametrize("optional", OPTIONAL)
def test_the_journal_has_the_same_bytes_of_both(optional: tuple[str, ...]) -> None:
    samples = draw(3, 9, optional)
    columns = pickle.loads(pickle.dumps(SampleColumns.of(samples)))
    found, expected = _rows_of_columns(columns), _rows(samples)
    assert found[0] == expected[0] and b"".join(found[1]) == b"".join(expected[1])
    batch = Batch(step=3, version=2, samples=columns)
    assert encode(batch) == encode(replace(batch, samples=samples))
    assert decode(encode(batch)) == replace(batch, samples=samples)


def test_a_sample_that_does_not_fit_is_named() -> None:
    with pytest.raises(ValueError, match="sample s4-"):
        pack(SampleColumns.of(draw(4, 9)), seq_len=8)


@pytest.mark.parametrize("optional", OPTIONAL)
def test_a_share_has_the_samples_that_are_read_whole_and_of_others_the_mask_alone(optional: tuple[str, ...]) -> None:
    samples, own = draw(5, 9, optional), [1, 2, 7]
    sent = pickle.dumps(SampleColumns.of(samples).share(own))
    received = pickle.loads(sent)
    assert len(sent) < len(pickle.dumps(SampleColumns.of(samples))) / 2
    for index, (sample, there) in enumerate(zip(samples, received, strict=True)):
        empty = {f.name: (0,) * len(sample.token_ids) for f in fields(Sample) if f.name in received.columns}
        if "routes" in empty:
            empty["routes"] = Routes(width=3, ids=bytes(6 * len(sample.token_ids)))
        rest = {"sample_id": sample.sample_id, "loss_mask": sample.loss_mask}
        assert there == (sample if index in own else Sample(**empty | rest))
