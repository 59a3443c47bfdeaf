"""The shared-memory weight store: whole versions, equal bits, clear errors, nothing left behind."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from agentgym.actors.owned_folder import OWNER_FILE, sweep
from agentgym.actors.process_id import ProcessId
from agentgym.errors import InfraError
from agentgym.models.safetensors import CHUNK_BYTES
from agentgym.weights import shared_memory
from agentgym.weights.shared_memory import SharedMemoryStore


def some_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "float": torch.randn(7, 3),
        "half": torch.randn(5).to(torch.bfloat16),  # 10 bytes: what follows is misaligned
        "scalar": torch.tensor(3.5),
        "strided": torch.randn(4, 6).t(),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False, True]),
        "last": torch.randn(2, 2, dtype=torch.float64),
    }


@pytest.fixture
async def store(tmp_path: Path) -> Iterator[SharedMemoryStore]:
    made = SharedMemoryStore("a/run name", root=tmp_path)
    yield made
    await made.close()


async def test_a_file_is_what_the_safetensors_library_reads(store: SharedMemoryStore) -> None:
    weights = some_weights()
    await store.put(0, weights.items())
    read = load_file(store.folder / "0.safetensors")
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


async def test_a_header_larger_than_its_space_moves_the_data(
    store: SharedMemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store._header_bytes = 64
    weights = {f"layer{i}": torch.full((i,), float(i)) for i in range(50)}
    await store.put(0, weights.items())
    assert store._header_bytes > 64, "the next version is to be written at once"
    for version in (0, 1):
        if version:
            await store.put(version, weights.items())
        read = load_file(store.folder / f"{version}.safetensors")
        assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())


async def test_another_process_reads_through_a_pickled_copy_and_its_close_removes_nothing(
    store: SharedMemoryStore, tmp_path: Path
) -> None:
    await store.put(1, [("w", torch.arange(5.0))])
    (tmp_path / "store.pkl").write_bytes(pickle.dumps(store))
    code = (
        "import asyncio, pickle, pathlib, sys\n"
        "async def main():\n"
        "    store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "    print(dict(await store.get(1))['w'].tolist())\n"
        "    await store.close()\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "store.pkl")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0, 3.0, 4.0]", done.stderr
    assert await store.versions() == [1]


async def test_tensors_outlive_the_deletion_of_their_version(store: SharedMemoryStore) -> None:
    await store.put(1, [("w", torch.ones(1000))])
    tensor = dict(await store.get(1))["w"]
    await store.delete(1)
    assert await store.versions() == [] and tensor.sum().item() == 1000


async def test_a_write_that_fails_leaves_no_file_and_a_store_that_is_closed_nothing(
    store: SharedMemoryStore, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="'a' twice"):
        await store.put(1, [("a", torch.ones(1)), ("a", torch.ones(1))])
    assert [path.name for path in store.folder.iterdir()] == [OWNER_FILE]
    await store.close()
    assert list(tmp_path.iterdir()) == []


async def test_a_version_is_not_there_before_its_last_tensor(store: SharedMemoryStore) -> None:
    seen: list[list[str]] = []

    def watched() -> Iterator[tuple[str, torch.Tensor]]:
        for name in ("a", "b"):
            yield name, torch.ones(1000)
            seen.append([path.name for path in store.folder.glob("*.safetensors")])

    await store.put(1, watched())
    assert seen == [[], []] and await store.versions() == [1]


async def test_a_full_memory_says_what_to_do(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", tmp_path], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting a small tmpfs is not allowed here")
    try:
        store = SharedMemoryStore("run", root=tmp_path)
        await store.put(1, [("w", torch.ones(10))])
        with pytest.raises(InfraError, match=r"is full: version 2 did not fit.*4 MiB in all.*--shm-size"):
            await store.put(2, [("w", torch.ones(3_000_000))])
        assert await store.versions() == [1], "what was there stays readable"
        await store.close()
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_a_sweep_removes_what_a_dead_owner_left_and_nothing_else(tmp_path: Path) -> None:
    alive = SharedMemoryStore("alive", root=tmp_path)
    me = ProcessId.of(os.getpid())
    finished = subprocess.Popen(["true"])
    finished.wait()
    records = {
        "agentgym-dead-1": {"pid": finished.pid, "start_ticks": 1, "namespace": me.namespace},
        "agentgym-reused-2": {"pid": me.pid, "start_ticks": me.start_ticks - 1, "namespace": me.namespace},
        "agentgym-container-3": {"pid": finished.pid, "start_ticks": 1, "namespace": "pid:[1]"},
    }
    for name, record in records.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / OWNER_FILE).write_text(json.dumps(record))
    (tmp_path / "agentgym-half-made").mkdir()
    removed = sweep(tmp_path)
    assert {path.name for path in removed} == {"agentgym-dead-1", "agentgym-reused-2"}
    assert alive.folder.is_dir() and (tmp_path / "agentgym-container-3").is_dir()


def test_a_machine_without_shared_memory_is_told_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(InfraError, match=r"set weights\.store to torchstore"):
        SharedMemoryStore("run", root=tmp_path / "nothing")


def test_the_default_place_is_memory() -> None:
    kind = subprocess.run(["stat", "-f", "-c", "%T", shared_memory.ROOT], capture_output=True, text=True)
    assert kind.stdout.strip() == "tmpfs"


async def test_a_version_deleted_meanwhile_stays_readable_for_a_process_that_was_given_its_path(
    store: SharedMemoryStore,
) -> None:
    await store.put(1, [("w", torch.arange(5.0))])
    held = await store.get(1)
    await store.delete(1)
    code = (
        "import sys, pathlib\n"
        "from agentgym.weights.reading import open_weights\n"
        "print(dict(open_weights(pathlib.Path(sys.argv[1])))['w'].tolist())\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(held.path)], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[0.0, 1.0, 2.0, 3.0, 4.0]", done.stderr
    del held


async def test_tensors_larger_than_a_chunk_are_written_whole(store: SharedMemoryStore) -> None:
    many = 2 * CHUNK_BYTES + 12
    weights = {"bytes": (torch.arange(many) % 251).to(torch.uint8), "after": torch.arange(7.0)}
    await store.put(1, weights.items())
    read = load_file(store.folder / "1.safetensors")
    assert all(torch.equal(read[name], tensor) for name, tensor in weights.items())
