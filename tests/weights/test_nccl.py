"""Weights sent to other processes: they die and come back, the trainer too, and bytes are damaged on the way.

gloo on CPUs is the same code as NCCL on GPUs; the same on two GPUs: tests/weights/test_broadcast_gpu.py.
"""

from __future__ import annotations

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentgym.actors.network import LOOPBACK
from agentgym.errors import InfraError
from agentgym.weights.flat import ALIGNMENT, buckets, checksum, layout_of, num_bytes
from agentgym.weights.listening import Listening, connect
from agentgym.weights.nccl import NcclStore

# reads the version on each line of its input; "slow" stops after the first weight until the next line
READER = """
import asyncio, pathlib, pickle, sys
from agentgym.weights.reading import open_weights
store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
for line in sys.stdin:
    version, *how = line.split()
    found = {}
    weights = asyncio.run(store.get(int(version)))
    for name, tensor in open_weights(weights.path):
        found[name] = float(tensor.double().sum())
        if how:
            print("first", flush=True)
            sys.stdin.readline()
            how = []
    print(*found.values(), flush=True)
"""
PUBLISHER = """
import asyncio, pathlib, pickle, sys, torch
store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
for line in sys.stdin:
    asyncio.run(store.put(int(line), [("a", torch.full((8,), float(line)))]))
    print("put", flush=True)
"""
SIZE = 1_000_000  # of a weight; more than a socket holds


class Child:
    """A process that answers each line with one."""

    def __init__(self, code: str, store: NcclStore, folder: Path) -> None:
        path = folder / "store.pkl"
        path.write_bytes(pickle.dumps(store))
        command = [sys.executable, "-c", code, str(path)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[NcclStore]:
    made = NcclStore("run", keep=2, address=LOOPBACK, timeout_s=30.0, bucket_bytes=4 * SIZE, root=tmp_path)
    yield made
    await made.close()


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        if child.process.returncode is None:
            child.kill()


def weights(version: int) -> dict[str, Tensor]:
    return {name: torch.full((SIZE,), float(version + index)) for index, name in enumerate("abcdef")}


def sums(version: int) -> str:
    return " ".join(str(float(tensor.double().sum())) for tensor in weights(version).values())


@pytest.mark.hostile
async def test_a_receiver_killed_while_weights_are_sent_costs_the_other_nothing_and_its_successor_joins(
    store: NcclStore, tmp_path: Path, children: list[Child]
) -> None:
    one, two = (Child(READER, store, tmp_path) for _ in range(2))
    children += [one, two]
    await store.put(1, weights(1).items())
    for child in (one, two):
        child.say("1")
    assert [child.answer() for child in (one, two)] == [sums(1)] * 2
    await store.put(2, weights(2).items())
    two.say("2 slow")
    one.say("2")
    assert two.answer() == "first"
    publisher = store._publisher
    assert publisher is not None and publisher._group is not None
    assert len(publisher._group[0]) == 2, "both are members of one broadcast"
    two.kill()
    assert one.answer() == sums(2)
    again = Child(READER, store, tmp_path)
    children.append(again)
    await store.put(3, weights(3).items())
    for child in (one, again):
        child.say("3")
    assert [child.answer() for child in (one, again)] == [sums(3)] * 2


@pytest.mark.hostile
async def test_after_the_trainer_is_replaced_its_versions_are_gone_and_readers_find_the_new_one(
    store: NcclStore, tmp_path: Path, children: list[Child]
) -> None:
    reader, trainer = Child(READER, store, tmp_path), Child(PUBLISHER, store, tmp_path)
    children += [reader, trainer]
    trainer.say("1")
    assert trainer.answer() == "put" and await store.versions() == [1]
    reader.say("1")
    assert reader.answer() == "8.0"
    trainer.kill()
    assert await store.versions() == []
    children.append(trainer := Child(PUBLISHER, store, tmp_path))
    trainer.say("2")
    assert trainer.answer() == "put"
    reader.say("2")
    assert reader.answer() == "16.0"


async def test_damaged_bytes_and_a_version_deleted_on_the_way_are_never_taken(store: NcclStore) -> None:
    await store.put(1, weights(1).items())
    given = await store.get(1)
    publisher = store._publisher
    assert publisher is not None
    publisher._slots[0].buffer[-7] += 1
    with pytest.raises(InfraError, match="part 5 of the weights arrived damaged"):
        dict(given)
    await store.put(2, weights(2).items())
    late = await store.get(1)
    await store.delete(1)
    with pytest.raises(InfraError, match=r"deleted before it was sent; the trainer holds \[2\]"):
        dict(late)
    assert [*dict(await store.get(2))] == [*weights(2)]


def test_buckets_hold_every_weight_once_and_a_checksum_sees_bytes_that_change_places() -> None:
    found = {name: torch.arange(float(10 * index)) for index, name in enumerate("abcdefgh", start=1)}
    layout = layout_of(found)
    parts = buckets(layout, 600)
    assert [name for part in parts for name in part.names] == [*found]
    assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == num_bytes(layout) and all(part.begin % ALIGNMENT == 0 for part in parts)
    data = torch.arange(256, dtype=torch.uint8)
    swapped = data.clone()
    swapped[[4, 8]] = swapped[[8, 4]]
    assert checksum(data) != checksum(swapped)


def test_a_checksum_sees_weights_and_lines_that_change_places() -> None:
    lines = torch.randint(256, (8, ALIGNMENT), dtype=torch.uint8)
    for order in ([1, 0, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [4, 5, 6, 7, 0, 1, 2, 3]):
        assert checksum(lines[order].flatten()) != checksum(lines.flatten())


@pytest.mark.parametrize("lines", [1, 3, 8, 9])
def test_a_checksum_is_the_same_however_many_lines_are_summed_at_a_time(monkeypatch, lines: int) -> None:
    data = torch.randint(256, (8 * ALIGNMENT,), dtype=torch.uint8)
    words = [int.from_bytes(data[at : at + 4].tolist(), "little", signed=True) for at in range(0, len(data), 4)]
    width = ALIGNMENT // 4
    columns = sum((2 * listens_at + 1) * sum(words[listens_at::width]) for listens_at in range(width))
    of_lines = sum((2 * line + 1) * sum(words[line * width : (line + 1) * width]) for line in range(8))
    monkeypatch.setattr("agentgym.weights.flat.SUMMED_LINES", lines)
    assert checksum(data) == columns % 2**64 ^ of_lines % 2**64 << 64


async def test_the_next_version_is_put_while_one_is_sent_to_a_reader_that_hangs(
    store: NcclStore, tmp_path: Path, children: list[Child]
) -> None:
    children.append(child := Child(READER, store, tmp_path))
    await store.put(1, weights(1).items())
    child.say("1 slow")
    assert child.answer() == "first"  # it does not read on: the rest of version 1 can't be sent
    publisher = store._publisher
    assert publisher is not None and publisher._slots[0].busy.locked()
    await store.put(2, weights(2).items())
    assert await store.versions() == [1, 2], "who only asks is answered"
    assert child.process.poll() is None and publisher._slots[0].busy.locked(), "it is still being sent"
    child.say("go on")
    assert child.answer() == sums(1)


def test_a_request_does_not_wait_for_the_acknowledgement_of_the_greeting() -> None:
    """Nagle's algorithm would hold it back for 40 ms."""
    listening = Listening(LOOPBACK, b"secret", lambda line: line.close())
    with (
        closing(listening),
        connect(listening.listens_at, b"secret") as line,
        socket.socket(fileno=os.dup(line.fileno())) as own,
    ):
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
