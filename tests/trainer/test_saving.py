"""A checkpoint that is written while steps go on is the one that was there when it was begun, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from agentgym.trainer import saving
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.engine import TrainingEngine
from agentgym.trainer.host_memory import HostMemory
from agentgym.types import Sample
from tests.trainer.gated_writer import Gate

MakeEngine = Callable[..., TrainingEngine]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate()
    monkeypatch.setattr(saving, "FileSystemWriter", gate.writer())
    return gate


def content(folder: Path) -> dict[str, Any]:
    """Of every file below, without what differs between two saves of the same: their ids and places."""
    files: dict[str, Any] = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    if ".metadata" in files:
        files[".metadata"] = dataclasses.replace(pickle.loads(files[".metadata"]), storage_meta=None)
        files["manifest.json"] = manifest = json.loads(files["manifest.json"])
        del manifest["files"][".metadata"]
    return files


@pytest.mark.parametrize("settings", [{"with_critic": True}, {"lora": LoraConfig(rank=2)}], ids=["all", "lora"])
def test_it_is_what_a_save_in_the_foreground_would_have_written(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, gate: Gate, settings: dict[str, Any]
) -> None:
    engine = make_engine(**settings)
    for _ in range(2):
        engine.train_step(samples)
    gate.open.set()
    engine.save(str(tmp_path / "foreground"))
    engine.export_hf(str(tmp_path / "hf"))
    gate.open.clear()
    engine.begin_save(str(tmp_path / "background"), str(tmp_path / "background-hf"))
    torch.manual_seed(5)
    before = dict(engine.hf_weights())
    before = {name: weight.clone() for name, weight in before.items()}
    engine.train_step(samples)
    assert any(not torch.equal(weight, before[name]) for name, weight in engine.hf_weights())
    assert not engine.saver.is_written and not (tmp_path / "background").exists()
    gate.open.set()
    engine.saver._thread.join()
    assert {path.name for path in tmp_path.glob("background*")} == {"background.partial", "background-hf.partial"}
    assert engine.saver.finish()["checkpoint/write_s"] > 0
    assert engine.saver.is_written and engine.saver.finish() == {}
    for one, other in (("foreground", "background"), ("hf", "background-hf")):
        expected, found = content(tmp_path / one), content(tmp_path / other)
        assert found.keys() == expected.keys() and len(found) > 2
        assert [name for name in found if found[name] != expected[name]] == []
    assert sorted(path.name for path in tmp_path.glob("*.partial")) == []


def test_a_save_that_fails_in_its_thread_raises_where_it_is_finished_and_leaves_the_former(
    make_engine: MakeEngine, samples: list[Sample], tmp_path: Path, gate: Gate
) -> None:
    engine = make_engine()
    gate.open.set()
    engine.save(str(tmp_path / "former"))
    kept, gate.full = content(tmp_path / "former"), True
    engine.begin_save(str(tmp_path / "next"), str(tmp_path / "next-hf"))
    engine.train_step(samples)
    with pytest.raises(OSError, match="No space left on device"):
        engine.saver.finish()
    assert content(tmp_path / "former") == kept
    assert sorted(path.name for path in tmp_path.glob("next*")) == ["next.partial"]
    engine.begin_save(str(tmp_path / "next"), str(tmp_path / "next-hf"))
    engine.saver.finish()
    assert {path.name for path in tmp_path.glob("next*")} == {"next", "next-hf"}


def test_a_second_save_is_refused_until_the_first_is_finished(
    make_engine: MakeEngine, tmp_path: Path, gate: Gate
) -> None:
    engine = make_engine()
    engine.begin_save(str(tmp_path / "one"), str(tmp_path / "one-hf"))
    with pytest.raises(ValueError, match="another checkpoint is being written"):
        engine.save(str(tmp_path / "two"))
    gate.open.set()
    engine.saver.finish()
    engine.save(str(tmp_path / "two"))


def test_copies_have_all_bits_and_outlast_their_tensors() -> None:
    memory = HostMemory(torch.device("cpu"))
    tensors = [
        torch.randn(3, 5).T,
        torch.tensor(7.5),
        torch.tensor([True, False]),
        torch.randn(8, 8)[::2, 1:3],
        torch.empty(0, 4),
        torch.randn(33, dtype=torch.bfloat16),
    ]
    expected = [tensor.clone() for tensor in tensors]
    copies = [memory.copy(tensor) for tensor in tensors]
    memory.wait()
    for tensor in tensors:
        tensor.zero_()
    memory.release()
    assert memory.size == 0
    for copy, wanted in zip(copies, expected, strict=True):
        assert copy.dtype == wanted.dtype and torch.equal(copy, wanted)
    assert copies[0].stride() == expected[0].stride()
    assert copies[0].untyped_storage().size() == copies[0].nbytes, "and is written without another copy"
