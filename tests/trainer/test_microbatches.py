"""The parts of a batch: what each is given, and that none waits for the device."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_model import draw_samples
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from agentgym.rl.losses import Loss
from agentgym.rl.losses.grpo import Grpo
from agentgym.rl.losses.gspo import Gspo
from agentgym.rl.packing import pack
from agentgym.trainer.context import Context
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.microbatches import joined, microbatches, split
from agentgym.trainer.mismatch_config import EngineLimits, MismatchConfig

CPU = torch.device("cpu")
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero")


class Waits(TorchDispatchMode):
    """What the host has to wait for on a device: values that it reads, and shapes that depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.split(".")[0]
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        by_mask = any(one is not None and one.dtype == torch.bool for one in indices)
        if by_mask or name.startswith(WAITING):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def allowed_always(positions_RL: Tensor, dtype: torch.dtype) -> None:
    """In the place of `packed_mask`, which reads values, and is not used with flex attention."""


@pytest.mark.parametrize(
    "loss",
    [
        Grpo(),
        Gspo(),
        Grpo(old="trainer", correction="sequence_mask"),
        Grpo(kl_coef=0.1, kl_in="reward", aggregation="sequence_mean", entropy_coef=0.01),
    ],
)
def test_no_microbatch_waits_for_the_device(
    make_engine: Callable[..., TrainingEngine], loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentgym.trainer.build.packed_mask", allowed_always)
    mismatch = MismatchConfig(engine=EngineLimits(mask=0.0), bound=0.1, drop="sequence")
    engine = make_engine(loss=loss, keep_logprobs=True, mismatch=mismatch)
    engine.train_step(draw_samples(9))  # of other weights, so that the next step masks tokens
    accumulate, waits = engine._accumulate, Waits()

    def watched(*given):
        with waits:
            return accumulate(*given)

    monkeypatch.setattr(engine, "_accumulate", watched)
    metrics = engine.train_step(draw_samples(9, seed=1))
    assert not waits.found
    assert metrics["mismatch/masked_share"] > 0


def test_the_watch_finds_what_waits() -> None:
    values_N = torch.arange(4)
    with Waits() as waits:
        values_N[values_N > 2]
        bool((values_N > 2).any())
        values_N[values_N > 2] = 0
        values_N[values_N]
    assert waits.found == ["index", "_local_scalar_dense", "index_put_"]


def test_parts_have_the_wanted_entries_of_their_rows() -> None:
    samples = draw_samples(9)
    batch = pack(samples, seq_len=64)
    parts = microbatches(
        batch,
        [slice(0, batch.num_rows, 2), slice(1, batch.num_rows, 2)],  # as two ranks have them
        batch.loss_mask,
        {"sample_index": batch.sample_index, "advantages": batch.advantages},
        context=Context(),
        device=CPU,
    )
    for number, part in enumerate(parts):
        assert torch.equal(part.token_ids, batch.token_ids[number::2])
        assert torch.equal(part.labels, batch.labels[number::2][batch.loss_mask[number::2]])
        assert torch.equal(part.labels, batch.labels.flatten()[part.batch_entries])
        assert torch.equal(part.token_ids.flatten()[part.entries], batch.token_ids.flatten()[part.batch_entries])
        assert torch.equal(part.columns["advantages"], batch.advantages.flatten()[part.batch_entries])
    batch_entries = torch.cat([part.batch_entries for part in parts])
    assert sorted(batch_entries.tolist()) == batch.loss_mask.flatten().nonzero()[:, 0].tolist()


def test_what_is_sent_together_is_taken_apart_again() -> None:
    parts = [
        {"ids": torch.arange(6).view(2, 3), "some": torch.rand(5), "here": torch.tensor([True, False])},
        {"ids": torch.arange(8).view(2, 4), "some": torch.rand(0), "more": torch.rand(3)},
    ]
    buffers = joined(parts)
    assert {dtype: len(buffer) for dtype, buffer in buffers.items()} == {
        torch.int64: 14,
        torch.float32: 8,
        torch.bool: 2,
    }
    again = split(buffers, parts)
    assert [list(part) for part in again] == [list(part) for part in parts]
    for part, same in zip(parts, again, strict=True):
        assert all(torch.equal(tensor, same[name]) for name, tensor in part.items())
