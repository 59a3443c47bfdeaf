"""TorchStore as a weight store gives what shared memory gives."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
from pathlib import Path

import psutil
import pytest
import torch

from agentgym.actors.descendants import titled
from agentgym.actors.endpoint import endpoint
from agentgym.actors.runtime import Actor, Runtime
from agentgym.errors import InfraError, UserError
from agentgym.weights.config import WeightsConfig
from agentgym.weights.select import TorchStoreConfig
from agentgym.weights.shared_memory import SharedMemoryStore

pytest.importorskip("torchstore")


def test_the_patch_changes_a_class_that_mixes_kinds_and_no_other() -> None:
    from monarch.actor import endpoint as monarch_endpoint

    from agentgym.weights.torchstore_patch import make_endpoints_async

    class Mixed(Actor):
        @monarch_endpoint
        def double(self, number: int) -> int:
            return 2 * number

        @monarch_endpoint
        async def triple(self, number: int) -> int:
            return 3 * number

    class Uniform(Actor):
        @endpoint
        async def triple(self, number: int) -> int:
            return 3 * number

    before = Uniform.triple
    assert make_endpoints_async(Mixed) and not make_endpoints_async(Uniform)
    assert all(inspect.iscoroutinefunction(e._method) for e in (Mixed.double, Mixed.triple))
    assert Uniform.triple is before
    assert not make_endpoints_async(Mixed), "a second time there is nothing to do"


@pytest.mark.slow
async def test_both_stores_give_bit_equal_weights_and_the_same_errors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    weights = {
        "model.embed": torch.randn(300, 64),
        "half": torch.randn(5).to(torch.bfloat16),
        "strided": torch.randn(4, 6).t(),
        "scalar": torch.tensor(2.0),
    }
    async with Runtime(log_dir=tmp_path) as runtime:
        theirs = await WeightsConfig(store=TorchStoreConfig()).open("a run", runtime=runtime)
        ours = await WeightsConfig().open("a run", runtime=runtime)
        assert isinstance(ours, SharedMemoryStore) and ours.process_imports == () != theirs.process_imports
        try:
            for store in (ours, theirs):
                for version in range(4):
                    await store.put(version, ((name, tensor + version) for name, tensor in weights.items()))
                assert await store.versions() == [2, 3], "weights.keep is 2"
                with pytest.raises(ValueError, match="version 3 is stored already"):
                    await store.put(3, weights.items())
                with pytest.raises(KeyError, match=r"no weights of version 0; the store holds \[2, 3\]"):
                    await store.get(0)
                read = dict(await store.get(3))
                assert list(read) == list(weights)
                for name, tensor in weights.items():
                    assert read[name].dtype == tensor.dtype
                    assert torch.equal(read[name], tensor + 3), name
                await store.delete(3)
                await store.delete(3)
                assert await store.versions() == [2]
        finally:
            await theirs.close()
            await ours.close()


def test_rdma_is_used_where_it_was_asked_for_by_either_name_or_refused_in_one_line() -> None:
    from agentgym.weights.torchstore_patch import wants_rdma

    assert not wants_rdma({}) and not wants_rdma({"TORCHSTORE_RDMA_ENABLED": "0", "TORCHSTORE_USE_RDMA": "0"})
    for name in ("TORCHSTORE_RDMA_ENABLED", "TORCHSTORE_USE_RDMA"):
        with pytest.raises(UserError, match=f"^the environment has {name}=1, but this machine has no RDMA device"):
            wants_rdma({name: "1"})
    for given in ({"TORCHSTORE_USE_RDMA": "yes"}, {"TORCHSTORE_RDMA_ENABLED": "0", "TORCHSTORE_USE_RDMA": "1"}):
        with pytest.raises(UserError, match="set TORCHSTORE_RDMA_ENABLED to 0 or 1"):
            wants_rdma(given)


@pytest.mark.slow
@pytest.mark.hostile
async def test_a_silent_or_dead_volume_is_an_error_of_its_own_and_no_deleted_version(tmp_path: Path) -> None:
    async with Runtime(log_dir=tmp_path) as runtime:
        store = await TorchStoreConfig().open("silent", keep=2, runtime=runtime)
        await store.put(1, [("weight", torch.ones(3))])
        (volume,) = titled("weights")
        os.kill(volume.pid, signal.SIGSTOP)
        while psutil.Process(volume.pid).status() != psutil.STATUS_STOPPED:  # another thread of it may go on till then
            await asyncio.sleep(0.01)
        store._timeout_s = 1.0
        with pytest.raises(InfraError, match=r"TorchStore did not answer within 1 s \(weights\.store\.timeout_s\)"):
            await store.get(1)
        os.kill(volume.pid, signal.SIGKILL)
        store._timeout_s = 60.0
        with pytest.raises(InfraError, match="TorchStore"):
            await store.put(2, [("weight", torch.ones(3))])
        await store.close()
