"""The store on GPUs: another process reads the same bits, on the same GPU and on another one."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from agentgym.actors.gpus import gpu_names
from agentgym.errors import InfraError
from agentgym.models.gpu_segments import let_segments_grow
from agentgym.weights.cuda_ipc import CudaIpcStore, GpuWeights
from agentgym.weights.flat import BUCKET_BYTES, buckets, checksums, fill, layout_of, num_bytes

READER = """
import asyncio, os, pathlib, pickle, sys, torch
from agentgym.weights.reading import open_weights

async def main():
    store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
    for version in map(int, sys.argv[2:]):
        weights = await store.get(version)
        shapes = {name: tuple(t.shape) for name, t in weights.entries()}
        read = {name: t.to("cuda:0") for name, t in open_weights(weights.path)}
        torch.cuda.synchronize()
        assert {name: tuple(t.shape) for name, t in read.items()} == shapes
        print(version, *(float(t.double().sum()) for t in read.values()))

asyncio.run(main())
"""


async def test_weights_on_a_cpu_are_refused_with_what_to_do(tmp_path: Path) -> None:
    store = CudaIpcStore("run", keep=2, root=tmp_path)
    with pytest.raises(InfraError, match=r"weights.store=cuda_ipc needs trainer.device=cuda"):
        await store.put(1, [("w", torch.ones(3))])
    with pytest.raises(KeyError, match=r"no weights of version 1; the store holds \[\]"):
        await store.get(1)
    await store.close()


def test_bytes_that_changed_are_refused_and_a_version_that_was_deleted_is_named(tmp_path: Path) -> None:
    found = {"matrix": torch.randn(300, 17), "odd": torch.arange(5)}
    layout = layout_of(found)
    buffer = torch.zeros(num_bytes(layout), dtype=torch.uint8)
    fill(buffer, layout, found.items())
    path = tmp_path / "1.gpu"
    sums = checksums(buffer, buckets(layout, BUCKET_BYTES))
    path.write_bytes(pickle.dumps((layout, OnCpu(buffer), sums)))
    assert all(torch.equal(tensor, found[name]) for name, tensor in GpuWeights(path))
    buffer[300] += 1
    path.write_bytes(pickle.dumps((layout, OnCpu(buffer), sums)))
    changed = GpuWeights(path)
    with pytest.raises(InfraError, match=r"are not those that were written$"):
        iter(changed)
    path.unlink()
    with pytest.raises(InfraError, match="the version was deleted, and its memory written anew"):
        iter(changed)


@dataclass
class OnCpu:
    """In place of a handle of a GPU's memory."""

    buffer: torch.Tensor

    def open(self) -> torch.Tensor:
        return self.buffer


def weights(version: int) -> dict[str, torch.Tensor]:
    return {
        "matrix": torch.full((300, 17), float(version), dtype=torch.bfloat16, device="cuda"),
        "odd": torch.arange(version, version + 5, dtype=torch.float32, device="cuda"),
        "scalar": torch.tensor(version * 2.0, device="cuda"),
    }


@pytest.mark.gpu
@pytest.mark.parametrize("numbers", [[0], [1, 0]], ids=["same GPU", "another GPU"])
async def test_another_process_reads_what_was_written(numbers: list[int], tmp_path: Path) -> None:
    if torch.cuda.device_count() < len(numbers):
        pytest.skip("one GPU")
    visible = ",".join(gpu_names(numbers))
    let_segments_grow()  # as a trainer does
    store = CudaIpcStore("run", keep=2, root=tmp_path)
    copy = tmp_path / "store.pkl"
    for version in range(1, 6):
        await store.put(version, weights(version).items())
        copy.write_bytes(pickle.dumps(store))
        held = await store.versions()
        assert held == [v for v in (version - 1, version) if v]
        read = subprocess.run(
            [sys.executable, "-c", READER, str(copy), *map(str, held)],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
            capture_output=True,
            text=True,
            timeout=120,
        )
        expected = [[v, *(float(t.double().sum()) for t in weights(v).values())] for v in held]
        assert [[float(x) for x in line.split()] for line in read.stdout.splitlines()] == expected, read.stderr
    with pytest.raises(ValueError, match="version 5 is stored already"):
        await store.put(5, weights(5).items())
    with pytest.raises(ValueError, match="did not come, such as 'odd'"):
        await store.put(6, [("matrix", weights(6)["matrix"]), ("scalar", weights(6)["scalar"])])
    assert await store.versions() == [5], "a version whose memory changed does not exist"
    await store.close()
