"""What is sent is received before vLLM is paused; what can't be read is known before, too."""

from __future__ import annotations

import asyncio
import pickle
import threading
import time
from pathlib import Path

import pytest
import torch

from agentgym.actors.network import LOOPBACK
from agentgym.generators.vllm import staging
from agentgym.generators.vllm.staging import Staging
from agentgym.weights.nccl import NcclStore

CPU = torch.device("cpu")


async def finished(made: Staging) -> Staging:
    async with asyncio.timeout(30):
        while not made.done:
            await asyncio.sleep(0.01)
    return made


@pytest.mark.parametrize("receive", [True, False])
async def test_weights_are_received_by_the_thread_where_they_may_be(tmp_path: Path, receive: bool) -> None:
    store = NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path)
    await store.put(1, [("a", torch.arange(5.0)), ("b", torch.ones(3, 2))])
    path = (await store.get(1)).path
    threads = set()
    opened = staging.open_weights

    class Watched:
        def __init__(self, path: Path) -> None:
            self._stored = opened(path)

        def entries(self):
            return self._stored.entries()

        def __iter__(self):
            threads.add(threading.current_thread().name)
            return iter(self._stored)

    staging.open_weights = Watched  # type: ignore[assignment]
    try:
        made = await finished(Staging(path, CPU, receive=receive))
        assert made.failure == "" and threads == ({"weights-staging"} if receive else set())
        found = await asyncio.to_thread(lambda: dict(made.weights()))
        assert torch.equal(found["a"], torch.arange(5.0)) and found["b"].shape == (3, 2)
        assert len(threads) == 1, "received once"
    finally:
        staging.open_weights = opened
        await store.close()


async def test_a_version_that_is_not_there_is_a_failure_and_not_an_exception(tmp_path: Path) -> None:
    made = await finished(Staging(tmp_path / "7.gpu", CPU, receive=True))
    assert made.failure.startswith("FileNotFoundError: ")
    (tmp_path / "8.gpu").write_bytes(pickle.dumps(({}, None, [])))
    made = await finished(Staging(tmp_path / "8.gpu", CPU, receive=True))
    assert "has no attribute 'open'" in made.failure


async def test_it_does_not_wait_for_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "open_weights", lambda path: time.sleep(1) or [])
    begin_s = time.monotonic()
    made = Staging(tmp_path / "weights", CPU, receive=True)
    assert not made.done and time.monotonic() - begin_s < 0.5
    assert (await finished(made)).weights() == []
