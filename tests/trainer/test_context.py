"""Which tokens of a row each rank has, what it attends to, and what it is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_mask, flex_attention

from agentgym.families.registry import architecture_of
from agentgym.models.released import RELEASED
from agentgym.planning.memory import sharding, trainer_parts
from agentgym.trainer import titan
from agentgym.trainer.attention import packed_mask
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.context import Context, gather_context

CPU = torch.device("cpu")
LENGTHS = (5, 1, 9, 0, 4), (24,)
"""Of the documents of two rows of 24; what is left is padding, whose tokens have position 0."""


class Place(Context):
    """As if in a group."""

    def __init__(self, rank: int, size: int) -> None:
        object.__setattr__(self, "place", (rank, size))

    __slots__ = ("place",)
    rank = property(lambda self: self.place[0])  # type: ignore[assignment]
    size = property(lambda self: self.place[1])  # type: ignore[assignment]


def positions(length: int = 24) -> Tensor:
    rows = [torch.cat([torch.arange(n) for n in lengths]) for lengths in LENGTHS]
    return torch.stack([torch.cat([row, torch.zeros(length - len(row), dtype=torch.int64)]) for row in rows])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_token_is_on_one_rank_and_all_have_the_same_causal_work(size: int) -> None:
    own = [Place(rank, size).own(24, CPU) for rank in range(size)]
    assert sorted(torch.cat(own).tolist()) == list(range(24))
    assert torch.equal(torch.cat(own), Place(1, size).order(24, CPU))
    assert len({int((tokens + 1).sum()) for tokens in own}) == 1


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("flex", [False, True])
def test_together_they_attend_to_what_one_alone_does(size: int, flex: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(titan, "create_attention_mask", create_mask)
    whole = packed_mask(positions(), torch.float32)
    assert whole is not None
    for rank in range(size):
        place = Place(rank, size)
        mask = place.mask(positions(), flex=flex, dtype=torch.float32)
        found = mask if flex else mask == 0
        own, order = place.own(24, CPU), place.order(24, CPU)
        assert torch.equal(found, (whole == 0)[:, :, own][:, :, :, order])


@pytest.fixture
def alone() -> Iterator[dist.ProcessGroup]:
    """A group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("rows", [1, 2])
def test_flex_attention_is_compiled_for_what_was_gathered(alone: dist.ProcessGroup, rows: int) -> None:
    """What is gathered of a single row is a view, and a tensor that is still waited for."""

    class Attention:
        forward = staticmethod(torch.compile(flex_attention, backend="eager"))

    class Mesh:
        @staticmethod
        def get_group() -> dist.ProcessGroup:
            return alone

    attention = Attention()
    gather_context([attention], Mesh)
    query, key, value = (torch.randn(rows, 128, 2, 16) for _ in range(3))
    with torch.no_grad():  # on a CPU
        found = attention.forward(query, key, value)
    assert torch.allclose(found, F.scaled_dot_product_attention(query, key, value), atol=1e-6)


def test_entries_are_found_on_the_rank_that_has_them() -> None:
    entries = torch.tensor([0, 3, 11, 23, 24, 30, 47])
    values = torch.arange(48).view(2, 24)
    seen = torch.zeros(len(entries), dtype=torch.int64)
    for rank in range(3):
        place = Place(rank, 3)
        here, of_own = place.entries(entries, 24)
        assert torch.equal(values[:, place.own(24, CPU)].flatten()[of_own], entries[here])
        seen += here
    assert seen.tolist() == [1] * len(entries)


def test_what_cannot_be_shared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"procs 4 must be a multiple of .* 1 times trainer.context_parallel 3"):
        TrainerConfig(procs=4, context_parallel=3)
    with pytest.raises(ValueError, match="seq_len 1028 must be a multiple of 8"):
        TrainerConfig(procs=4, tensor_parallel=2, context_parallel=2, seq_len=1028)


def test_a_rank_holds_its_share_of_a_row_and_of_the_weights() -> None:
    model = architecture_of(RELEASED["Qwen/Qwen3-8B"], "8B")
    given = {"procs": 4, "dtype": "bfloat16", "seq_len": 32768, "rows_per_microbatch": 1, "device": "cuda"}
    alone, shared = TrainerConfig(**given), TrainerConfig(**given, context_parallel=4)  # type: ignore[arg-type]
    assert (alone.data_ranks, shared.data_ranks) == (4, 1) and sharding(alone) == sharding(shared) == 4
    one, part = (trainer_parts(model, config, on_gpu=True, batch_tokens=1 << 20) for config in (alone, shared))
    assert part["activations"] == pytest.approx(one["activations"] / 4) and part["weights"] == one["weights"]
    assert "context" not in one
    assert part["context"] * 2**30 == 32768 * 8 * 128 * 2 * 2 * 2, "keys, values and their gradients, of one layer"
