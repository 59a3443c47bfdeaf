"""What is sent is received before vLLM is paused; what can't be read is known before, too."""

from __future__ import annotations

import asyncio
import pickle
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from plain_adapters import adapted
from plain_model import PlainModel

from agentgym.actors.network import LOOPBACK
from agentgym.generators.vllm import staging
from agentgym.generators.vllm.staging import Staging
from agentgym.weights import adapters
from agentgym.weights.adapters import NOTE, A, AdapterNote, Base, MergedWeights, has_adapters
from agentgym.weights.digest import digest
from agentgym.weights.nccl import NcclStore
from agentgym.weights.shared_memory import SharedMemoryStore

CPU = torch.device("cpu")
NO_BASE = Base(Path("nowhere"))


async def finished(made: Staging) -> Staging:
    async with asyncio.timeout(30):
        while not made.done:
            await asyncio.sleep(0.01)
    return made


@pytest.fixture
def receivers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that received weights, in order."""
    threads: list[str] = []
    opened = staging.open_weights

    class Watched:
        def __init__(self, path: Path) -> None:
            self._stored = opened(path)

        def entries(self):
            return self._stored.entries()

        def __iter__(self):
            threads.append(threading.current_thread().name)
            return iter(self._stored)

    monkeypatch.setattr(staging, "open_weights", Watched)
    return threads


@pytest.mark.parametrize("receive", [True, False])
async def test_weights_are_received_by_the_thread_where_they_may_be(
    tmp_path: Path, receivers: list[str], receive: bool
) -> None:
    store = NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path)
    await store.put(1, [("a", torch.arange(5.0)), ("b", torch.ones(3, 2))])
    path = (await store.get(1)).path
    try:
        made = await finished(Staging(path, CPU, receive=receive, base=NO_BASE))
        assert made.failure == "" and receivers == (["weights-staging"] if receive else [])
        found = await asyncio.to_thread(lambda: dict(made.weights()))
        assert torch.equal(found["a"], torch.arange(5.0)) and found["b"].shape == (3, 2)
        assert len(receivers) == 1, "received once"
    finally:
        await store.close()


async def test_a_version_that_is_not_there_is_a_failure_and_not_an_exception(tmp_path: Path) -> None:
    made = await finished(Staging(tmp_path / "7.gpu", CPU, receive=True, base=NO_BASE))
    assert made.failure.startswith("FileNotFoundError: ")
    (tmp_path / "8.gpu").write_bytes(pickle.dumps(({}, None, [])))
    made = await finished(Staging(tmp_path / "8.gpu", CPU, receive=True, base=NO_BASE))
    assert "has no attribute 'open'" in made.failure


async def test_it_does_not_wait_for_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may = threading.Event()

    class Slow(list[tuple[str, torch.Tensor]]):
        def __init__(self, path: Path) -> None:
            assert may.wait(60)

        def entries(self):
            return iter(self)

    monkeypatch.setattr(staging, "open_weights", Slow)
    made = Staging(tmp_path / "weights", CPU, receive=True, base=NO_BASE)
    assert not made.done
    may.set()
    assert (await finished(made)).weights() == []


@pytest.mark.parametrize("room", [True, False])
async def test_what_is_on_another_gpu_is_copied_beforehand_where_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """The device that they are copied to is torch's meta device here."""

    class OnAnotherGpu(list[tuple[str, torch.Tensor]]):
        def entries(self):
            return iter(self)

    monkeypatch.setattr(staging, "open_weights", lambda path: OnAnotherGpu([("a", torch.arange(5.0))]))
    monkeypatch.setattr(staging, "has_room", lambda stored, device: room)
    for name, copied in (("7.gpu", room), ("7.safetensors", False)):
        made = await finished(Staging(tmp_path / name, torch.device("meta"), receive=True, base=NO_BASE))
        assert [tensor.device.type for _, tensor in made.weights()] == ["meta" if copied else "cpu"], name


@pytest.mark.parametrize("receive", [True, False])
async def test_adapters_are_received_and_merged_before_the_weights_are_asked_for(
    tmp_path: Path, old_model: PlainModel, receivers: list[str], receive: bool
) -> None:
    """receive: in the thread, or by who makes it."""
    store = NcclStore("run", keep=2, address=LOOPBACK, root=tmp_path)
    given, plain = adapted(old_model, tmp_path / "plain", seed=1)
    await store.put(1, given.items())
    path = (await store.get(1)).path
    try:
        base = Base(old_model.folder)
        made = await asyncio.to_thread(lambda: Staging(path, CPU, receive=receive, base=base))
        assert (await finished(made)).failure == ""
        assert len(receivers) == 1 and (receivers == ["weights-staging"]) == receive
    finally:
        await store.close()  # nothing is received from here on
    found, expected = made.weights(), plain.model.state_dict()
    assert isinstance(found, MergedWeights) and {*dict(found)} <= {*expected}
    assert len([name for name in given if name.endswith(A)]) == 14 and not has_adapters(found)
    for name, weight in found:
        assert weight is found[name], "made already"
        assert torch.allclose(weight, expected[name], atol=1e-5), name
        assert torch.equal(weight, dict(old_model.weights())[name]) == ("_proj" not in name)


async def test_of_an_origin_that_the_model_holds_only_what_is_adapted_is_made(
    tmp_path: Path, old_model: PlainModel
) -> None:
    store, base = SharedMemoryStore("run", keep=2, root=tmp_path), Base(old_model.folder)
    given, _ = adapted(old_model, tmp_path / "plain", seed=1)
    note = replace(AdapterNote.of_tensor(given[NOTE]), dtype="bfloat16")  # no tensor of the base is taken as it is
    await store.put(1, (given | {NOTE: note.to_tensor(CPU)}).items())
    stored = await store.get(1)
    origin = base.merged(stored, CPU).origin
    assert len(origin.adapted) == 14
    for held, made in ((None, True), (origin, False), (replace(origin, base_dtype="bfloat16"), True)):
        found = (await finished(Staging(stored.path, CPU, receive=True, base=base, held=held))).weights()
        assert isinstance(found, MergedWeights)
        assert all(found[name] is found[name] for name in origin.adapted)
        assert all((found[name] is found[name]) == made for name, _ in found.parts()[0])


async def test_another_base_is_a_failure_that_the_user_must_fix(
    tmp_path: Path, old_model: PlainModel, new_model: PlainModel
) -> None:
    store = SharedMemoryStore("run", keep=2, root=tmp_path)
    await store.put(1, adapted(new_model, tmp_path / "plain", seed=1)[0].items())
    stored = await store.get(1)  # its path is readable for as long as it lives
    made = await finished(Staging(stored.path, CPU, receive=True, base=Base(old_model.folder)))
    assert made.failure.startswith(f"OtherBase: the model in {old_model.folder} is not the one")


async def test_ahead_of_a_version_the_base_is_read_and_checked_once_and_nothing_is_made(
    tmp_path: Path, old_model: PlainModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: list[str] = []

    def counted(weights):
        digests.append(threading.current_thread().name)
        return digest(weights)

    monkeypatch.setattr(adapters, "digest", counted)
    store, base = SharedMemoryStore("run", keep=2, root=tmp_path), Base(old_model.folder)
    await store.put(0, old_model.weights())
    await store.put(1, adapted(old_model, tmp_path / "plain", seed=1)[0].items())
    whole, adapters_alone = await store.get(0), await store.get(1)
    made = await finished(Staging(whole.path, CPU, receive=True, base=base, ahead=True))
    assert made.failure == "" and digests == [], "whole weights need no base"
    made = await finished(Staging(adapters_alone.path, CPU, receive=True, base=base, ahead=True))
    assert made.failure == "" and digests == ["weights-staging"]
    found = made.weights()
    assert isinstance(found, MergedWeights) and not any(found[name] is found[name] for name in found.origin.adapted)
    await finished(Staging(adapters_alone.path, CPU, receive=True, base=base))
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("free", "shared", "kept"), [(2**30 + 2000, False, True), (2**30 + 1999, False, False), (2**40, True, False)]
)
async def test_the_base_stays_on_a_device_of_its_own_with_room_for_as_much_that_is_merged(
    tmp_path: Path, old_model: PlainModel, monkeypatch: pytest.MonkeyPatch, free: int, shared: bool, kept: bool
) -> None:
    class Asked(Base):
        keeps = False

        def merged(self, weights, device, keeps=None):
            self.keeps = keeps(1000)
            return super().merged(weights, device)

    monkeypatch.setattr(staging, "free_bytes", lambda device: free)
    monkeypatch.setattr(staging, "others_bytes", lambda device: 2**40 if shared else 0)
    store, base = SharedMemoryStore("run", keep=2, root=tmp_path), Asked(old_model.folder)
    await store.put(1, adapted(old_model, tmp_path / "plain", seed=1)[0].items())
    stored = await store.get(1)
    assert (await finished(Staging(stored.path, CPU, receive=True, base=base))).failure == ""
    assert base.keeps == kept


def test_a_base_asks_for_room_for_what_is_adapted_until_it_is_kept(tmp_path: Path, old_model: PlainModel) -> None:
    base, asked, answers = Base(old_model.folder), [], [False, True]
    given, plain = adapted(old_model, tmp_path / "plain", seed=1)

    def keeps(size: int) -> bool:
        asked.append(size)
        return answers[len(asked) - 1]

    for _ in range(3):
        found, expected = dict(base.merged(given.items(), CPU, keeps)), plain.model.state_dict()
        assert all(torch.allclose(found[name], expected[name], atol=1e-5) for name in found)
    assert asked == [sum(weight.nbytes for name, weight in old_model.weights() if "_proj" in name)] * 2
