"""The store `nccl` on two GPUs: what is sent by NCCL equals bit for bit, and a receiver that was killed comes back."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from agentgym.actors.network import LOOPBACK
from agentgym.weights.flat import checksum
from agentgym.weights.nccl import NcclStore

READER = """
import asyncio, pathlib, pickle, sys, time, torch
from agentgym.weights.flat import checksum
from agentgym.weights.receiver import receiver
store = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())
for line in sys.stdin:
    begin_s, sums, device = time.perf_counter(), [], set()
    for name, tensor in asyncio.run(store.get(int(line))):
        device.add(str(tensor.device))
        sums.append(checksum(tensor.flatten().view(torch.uint8)))
    print(receiver(store._source)._group.backend, *device, time.perf_counter() - begin_s, *sums, flush=True)
"""
ROWS, COLUMNS = 6144, 2048


def end(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()  # which closes its pipes


def weights(version: int, count: int) -> dict[str, Tensor]:
    generator = torch.Generator("cuda").manual_seed(version)
    settings = {"device": "cuda", "dtype": torch.bfloat16, "generator": generator}
    return {f"w{index}": torch.randn(ROWS, COLUMNS, **settings) for index in range(count)}  # type: ignore[arg-type]


@pytest.mark.gpu
@pytest.mark.timeout(300)
async def test_nccl_sends_the_same_bits_and_a_killed_receivers_successor_gets_them(tmp_path: Path) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    torch.cuda.set_device(0)
    store = NcclStore("run", keep=2, address=LOOPBACK, timeout_s=60.0, root=tmp_path)
    copy = tmp_path / "store.pkl"
    copy.write_bytes(pickle.dumps(store))

    def reader() -> subprocess.Popen[str]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")[1]
        return subprocess.Popen(
            [sys.executable, "-c", READER, str(copy)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": visible},
        )

    child = reader()
    try:
        for version in range(1, 7):
            sent = weights(version, 135)  # as many bytes as 1.7 billion parameters in bfloat16
            begin_s = time.perf_counter()
            await store.put(version, sent.items())
            put_s = time.perf_counter() - begin_s
            if version == 5:
                end(child)
                child = reader()
            assert child.stdin is not None and child.stdout is not None
            print(version, file=child.stdin, flush=True)
            backend, device, load_s, *sums = child.stdout.readline().split()
            print(f"version {version}: put {put_s:.3f} s, received {float(load_s):.3f} s by {backend}")
            assert (backend, device) == ("nccl", "cuda:0")
            assert [*map(int, sums)] == [checksum(t.flatten().view(torch.uint8)) for t in sent.values()]
    finally:
        end(child)
    await store.close()
