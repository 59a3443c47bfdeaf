"""What a step is trained on comes back from the disk with all its bits, or is refused."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
from tiny_model import draw_samples

from agentgym.errors import InfraError
from agentgym.routes import Routes
from agentgym.trainer.journal import Batch, Journal, decode, encode
from agentgym.types import Sample


def full_sample() -> Sample:
    """Every field holds something, of values that text would round."""
    sample = draw_samples(1)[0]
    length = len(sample.token_ids)
    odd = (-0.0, 1 / 3, 5e-324, math.pi)
    values: dict[str, object] = {"sample_id": "a-é-b1"}
    for field in fields(Sample):
        if field.name not in ("sample_id", "loss_mask", "token_ids", "versions"):
            values[field.name] = tuple(odd[at % 4] for at in range(length))
    values["routes"] = Routes(width=3, ids=bytes(at * 7 % 256 for at in range(6 * length)))
    return replace(sample, **values)


def test_every_field_of_a_sample_comes_back_bit_for_bit() -> None:
    batch = Batch(step=7, version=5, moved=True, samples=[full_sample(), *draw_samples(5)])
    again = decode(encode(batch))
    assert again == batch
    assert repr(again) == repr(batch), "which tells -0.0 from 0.0"


def test_a_batch_that_is_damaged_or_of_another_step_is_named(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.write(Batch(step=3, version=2, samples=draw_samples(2)))
    path = tmp_path / "journal" / "step-000003.batch"
    (tmp_path / "journal" / "step-000004.batch").write_bytes(path.read_bytes())
    with pytest.raises(InfraError, match=r"step-000004\.batch has the batch of step 3"):
        journal.read(4)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InfraError, match=r"step 3 can't be read from .*step-000003"):
        journal.read(3)
    with pytest.raises(InfraError, match="step 9 can't be read"):
        journal.read(9)


def test_a_position_counts_only_with_every_batch_since_the_checkpoint(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    assert journal.position(0) == {}
    for step in (3, 4, 5):
        journal.write(Batch(step=step, version=0, samples=draw_samples(1)))
    journal.mark({"step": 4, "next_group": 9})
    assert journal.position(2) == {"step": 4, "next_group": 9}
    assert journal.position(1) == {}, "step 2 is missing"
    assert journal.position(4) == {}, "the checkpoint holds it"
    journal.drop(3)
    assert journal.steps() == [4, 5] and journal.position(2) == {}
    journal.clear()
    assert [*journal.folder.iterdir()] == []
