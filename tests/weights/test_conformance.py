"""What every store gives: whole versions, equal bits, the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentgym.actors.network import LOOPBACK
from agentgym.weights.nccl import NcclStore
from agentgym.weights.shared_memory import SharedMemoryStore
from agentgym.weights.store import StoredWeights, WeightStore


@pytest.fixture(params=["shared_memory", "nccl"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[WeightStore]:
    made: WeightStore
    if request.param == "nccl":
        made = NcclStore("a/run name", keep=2, address=LOOPBACK, timeout_s=30.0, bucket_bytes=512, root=tmp_path)
    else:
        made = SharedMemoryStore("a/run name", keep=2, root=tmp_path)
    yield made
    await made.close()


def some_weights(seed: int = 0) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return {
        "float": torch.randn(7, 30),
        "half": torch.randn(5).to(torch.bfloat16),
        "scalar": torch.tensor(3.5),
        "strided": torch.randn(4, 6).t(),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "last": torch.randn(2, 2, dtype=torch.float64),
    }


def equal(read: dict[str, Tensor], written: dict[str, Tensor]) -> bool:
    same = (read[n].dtype == t.dtype and torch.equal(read[n], t) for n, t in written.items())
    return [*read] == [*written] and all(same)


async def test_what_is_read_equals_bit_for_bit_what_was_written_and_the_newest_are_kept(store: WeightStore) -> None:
    assert await store.versions() == []
    for version in (3, 4, 5):
        await store.put(version, some_weights(version).items())
    assert await store.versions() == [4, 5]
    for version in (5, 4):
        weights = await store.get(version)
        assert equal(dict(weights), some_weights(version))
        assert isinstance(weights, StoredWeights)
        entries = {name: (entry.dtype, entry.shape, entry.device.type) for name, entry in weights.entries()}
        assert entries == {name: (t.dtype, t.shape, "meta") for name, t in some_weights().items()}
    await store.delete(4)
    await store.delete(4)  # no error
    assert await store.versions() == [5]


async def test_a_version_is_written_once_and_a_missing_one_is_named(store: WeightStore) -> None:
    await store.put(2, [("w", torch.ones(3))])
    with pytest.raises(ValueError, match="version 2 is stored already"):
        await store.put(2, [("w", torch.zeros(3))])
    with pytest.raises(KeyError, match=r"no weights of version 7; the store holds \[2\]"):
        await store.get(7)
    dict(await store.get(2))["w"].zero_()
    assert dict(await store.get(2))["w"].tolist() == [1, 1, 1]


async def test_a_write_that_fails_half_way_leaves_no_version(store: WeightStore) -> None:
    def broken() -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.ones(1000)
        raise RuntimeError("the trainer died")

    for version in (1, 2):
        with pytest.raises(RuntimeError, match="the trainer died"):
            await store.put(version, broken())
        with pytest.raises(ValueError, match="'a' twice"):
            await store.put(version, [("a", torch.ones(1000)), ("a", torch.ones(1000))])
        assert version not in await store.versions()
        await store.put(0, [("a", torch.ones(1000))]) if version == 1 else None
    await store.put(3, [("a", torch.full((1000,), 3.0))])
    assert equal(dict(await store.get(3)), {"a": torch.full((1000,), 3.0)})
