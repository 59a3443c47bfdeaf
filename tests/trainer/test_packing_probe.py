"""What cannot share a row is found at the start, and trained with a row for each sample to the same numbers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from agentgym.families.family import Family
from agentgym.rl.packing import read_by
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.packing_probe import packed_difference, why_by_row
from agentgym.types import Sample

MakeEngine = Callable[..., TrainingEngine]


def test_a_model_that_mixes_documents_goes_on_with_one_a_row(
    make_engine: MakeEngine, caplog: pytest.LogCaptureFixture
) -> None:
    rows = make_engine()._rows
    assert not rows.one_per_row and "a row of its own" not in caplog.text  # a right one was probed without a word

    def mixing(samples: Sequence[Sample]) -> list[tuple[float, ...]]:
        off = 0.01 if rows.pack(samples).num_rows < len(samples) else 0.0
        return [tuple(off * token for token in sample.token_ids) for sample in samples]

    with caplog.at_level(logging.WARNING):
        rows.prove(mixing)
    assert rows.one_per_row and "each sample gets a row of its own: two documents of qwen3 in one row" in caplog.text


def test_with_one_sample_a_row_a_step_is_the_packed_one(make_engine: MakeEngine, samples: list[Sample]) -> None:
    packed, apart = make_engine(), make_engine()
    apart._rows.one_per_row = True
    assert apart._rows.pack(samples).num_rows == len(samples) > packed._rows.pack(samples).num_rows
    ours, theirs = packed.train_step(samples), apart.train_step(samples)
    for name in ("train/loss", "train/grad_norm", "train/entropy"):
        assert theirs[name] == pytest.approx(ours[name], abs=2e-6), name
    lengths = [len(sample.token_ids) for sample in samples]
    read = [read_by(lengths, 128, None, rank, 2, one_per_row=True) for rank in range(2)]
    assert sorted(read[0] + read[1]) == list(range(len(samples))) and abs(len(read[0]) - len(read[1])) <= 1


def test_a_family_that_carries_state_along_rows_is_never_packed() -> None:
    def unasked(samples: Sequence[Sample], one_per_row: bool) -> list[tuple[float, ...]]:
        raise AssertionError("it was packed")

    why = why_by_row(Family(model_types=("lfm2",), packs="row"), unasked, vocab_size=96, dtype="float32")
    assert why == "layers of lfm2 carry state along a row"


def test_masks_that_are_not_reset_are_found(make_engine: MakeEngine) -> None:
    """The prototypes' control: positions that go on give differences of nats."""
    engine = make_engine()

    def joined(samples: Sequence[Sample], one_per_row: bool) -> list[tuple[float, ...]]:
        if one_per_row:
            return [engine.logprobs([sample])[0] for sample in samples]
        one = samples[0]
        columns = ("token_ids", "loss_mask", "logprobs", "advantages", "versions")
        whole = {name: sum((tuple(getattr(sample, name)) for sample in samples), ()) for name in columns}
        found, values = engine.logprobs([replace(one, **whole)])[0], []
        for sample in samples:
            values.append((0.0, *found[1 : len(sample.token_ids)]))
            found = found[len(sample.token_ids) :]
        return values

    assert packed_difference(joined, engine._architecture.vocab_size) > 0.1
