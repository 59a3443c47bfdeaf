"""What an update of adapters copies into vLLM's model, in vLLM's place a model that fuses matrices as vLLM's do."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from plain_adapters import adapted
from plain_model import PlainModel
from torch import Tensor, nn

from agentgym.errors import InfraError
from agentgym.generators.vllm import staging
from agentgym.generators.vllm.worker import WorkerExtension
from agentgym.models.safetensors import write_tensors
from agentgym.weights import adapters
from agentgym.weights.adapters import Base, merge
from agentgym.weights.reading import open_weights

FUSED = {"q_proj": "qkv_proj", "k_proj": "qkv_proj", "v_proj": "qkv_proj", "up_proj": "gate_up", "gate_proj": "gate_up"}


def own_name(name: str) -> str:
    return ".".join(FUSED.get(part, part) for part in name.split("."))


class Model:
    """parameters: by name of the checkpoint. copied: names in the order of copies. ignored: left as they were."""

    def __init__(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        self.parameters = {name: torch.full_like(weight, torch.nan) for name, weight in weights}
        self.copied: list[str] = []
        self.ignored = ""

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        return {own_name(name): weight for name, weight in self.parameters.items()}.items()

    def modules(self) -> Iterable[nn.Module]:
        return ()

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
        loaded: set[str] = set()
        for name, weight in weights:
            if name != self.ignored:
                self.parameters[name].copy_(weight)
                self.copied.append(name)
                loaded.add(own_name(name))
        return loaded


@dataclass
class Configs:
    """Those of vLLM, as far as a worker asks them."""

    model: str
    dtype: torch.dtype = torch.float32
    enable_cumem_allocator: bool = False
    world_size: int = 1


class Worker(WorkerExtension):
    device = torch.device("cpu")

    def __init__(self, base: PlainModel) -> None:
        self.model = Model(base.weights())
        self.model_runner = self
        self.model_config = self.parallel_config = Configs(str(base.folder))

    def get_model(self) -> Model:
        return self.model

    def agentgym_loads_in_place(self) -> bool:
        return True

    def load(self, path: Path, *, lost: bool = False, prepare: bool = True) -> list[str]:
        """The names that were copied."""
        if prepare:
            self.agentgym_prepare(str(path))
            while self.agentgym_prepared() is None:
                pass
        self.model.copied = []
        self.agentgym_load_weights(str(path), lost=lost)
        return self.model.copied


def stored(path: Path, weights: Iterable[tuple[str, Tensor]]) -> Path:
    with path.open("w+b") as file:
        write_tensors(file, weights)
    return path


@pytest.fixture
def versions(tmp_path: Path, old_model: PlainModel) -> list[tuple[Path, dict[str, Tensor]]]:
    """Adapters of one base, with all weights that they make."""
    base, device = Base(old_model.folder), torch.device("cpu")
    given = [adapted(old_model, tmp_path / f"plain{seed}", seed=seed)[0].items() for seed in range(3)]
    return [(stored(tmp_path / f"v{seed}", own), dict(base.merged(own, device))) for seed, own in enumerate(given)]


def test_a_later_version_of_the_same_base_copies_what_is_adapted_to_the_same_bits(
    old_model: PlainModel, versions: list[tuple[Path, dict[str, Tensor]]]
) -> None:
    worker = Worker(old_model)
    for number, (path, expected) in enumerate(versions):
        copied = worker.load(path, prepare=number != 1)
        wanted = [name for name in expected if number == 0 or "_proj" in name]
        assert sorted(copied) == sorted(wanted)
        assert all(torch.equal(worker.model.parameters[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("full", [False, True])
def test_without_room_each_matrix_is_merged_while_it_is_loaded_and_none_is_kept(
    old_model: PlainModel, versions: list[tuple[Path, dict[str, Tensor]]], monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    """full: it is found out by an allocation that fails."""
    alive: list[weakref.ref[Tensor]] = []
    most = 0

    def watched(*arguments: Tensor) -> Tensor:
        nonlocal most
        if full and threading.current_thread().name == "weights-staging" and alive:
            raise torch.OutOfMemoryError("no memory")
        merged = merge(*arguments)
        alive.append(weakref.ref(merged))
        most = max(most, sum(one() is not None for one in alive))
        return merged

    worker = Worker(old_model)
    for path, expected in versions[:2]:
        alive.clear()
        monkeypatch.setattr(adapters, "merge", watched)
        monkeypatch.setattr(staging, "has_room", lambda stored, device: full)
        worker.agentgym_prepare(str(path))
        while worker.agentgym_prepared() is None:
            pass
        assert worker.agentgym_prepared() == "" and not any(one() is not None for one in alive)
        assert len(alive) == full
        worker.load(path, prepare=False)
        assert all(torch.equal(worker.model.parameters[name], weight) for name, weight in expected.items())
        assert len(alive) == 14 + full and most <= 2, "the one that is copied, and the next"


def test_what_a_device_has_no_memory_for_is_merged_on_the_cpu(
    old_model: PlainModel, versions: list[tuple[Path, dict[str, Tensor]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the CPU here as well: the first try of each matrix fails."""
    tries: list[int] = []

    def fails_first(*arguments: Tensor) -> Tensor:
        tries.append(1)
        if len(tries) % 2:
            raise torch.OutOfMemoryError("no memory")
        return merge(*arguments)

    (path, expected), cpu = versions[0], torch.device("cpu")
    monkeypatch.setattr(adapters, "merge", fails_first)
    found = dict(Base(old_model.folder).whole(open_weights(path), cpu))
    assert len(tries) == 28 and all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_after_other_weights_after_a_sleep_and_after_a_failure_all_are_copied(
    old_model: PlainModel, versions: list[tuple[Path, dict[str, Tensor]]], tmp_path: Path
) -> None:
    worker, every = Worker(old_model), sorted(versions[0][1])
    assert sorted(worker.load(versions[0][0])) == every
    worker.load(stored(tmp_path / "whole", old_model.weights()))
    assert sorted(worker.load(versions[1][0])) == every
    assert sorted(worker.load(versions[2][0], lost=True)) == every
    assert len(worker.load(versions[0][0])) < len(every)
    worker.model.ignored = "model.layers.1.mlp.down_proj.weight"
    with pytest.raises(
        InfraError, match=r"left 1 of its weights as they were: model\.layers\.1\.mlp\.down_proj\.weight"
    ):
        worker.load(versions[1][0])
    worker.model.ignored = ""
    assert sorted(worker.load(versions[2][0])) == every
