"""Folders of weights: written whole or in shards, read back bit for bit, and refused when damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from agentgym.errors import UserError
from agentgym.models import safetensors
from agentgym.models.safetensors import INDEX, read_folder, read_shapes, weight_files, write_folder

WEIGHTS: dict[str, Tensor] = {
    "bytes": torch.arange(3, dtype=torch.uint8),  # what follows is misaligned
    "half": torch.linspace(-1, 1, 7, dtype=torch.bfloat16),
    "matrix": torch.arange(12.0).reshape(3, 4).t(),
    "none": torch.empty(0, 5),
    "scalar": torch.tensor(2.5),
}


@pytest.mark.parametrize("shard_bytes", [1, 20, 1 << 20])
def test_what_is_read_equals_what_was_written_in_any_number_of_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shard_bytes: int
) -> None:
    monkeypatch.setattr(safetensors, "MAX_SHARD_BYTES", shard_bytes)
    write_folder(tmp_path, WEIGHTS.items())
    files = weight_files(tmp_path)
    assert (len(files) > 1) == (tmp_path / INDEX).is_file() == (shard_bytes < 1 << 20)
    assert read_shapes(tmp_path) == {name: tuple(weight.shape) for name, weight in WEIGHTS.items()}
    by_library = {name: weight for path in files for name, weight in load_file(path).items()}
    for read in (dict(read_folder(tmp_path)), by_library):
        assert read.keys() == WEIGHTS.keys()
        assert all(w.dtype == WEIGHTS[n].dtype and torch.equal(w, WEIGHTS[n]) for n, w in read.items())


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "has no weights in safetensors format"),
        (lambda path: path.write_bytes(b""), "is damaged"),
        (lambda path: path.write_bytes(b"torn"), "is damaged"),
        (lambda path: path.write_bytes(b"\xff" * 64), "its header claims"),
        (lambda path: path.write_bytes((2).to_bytes(8, "little") + b"[]"), "is damaged"),
        (cut, "its header describes"),
        (lengthen, "its header describes"),
        (lambda path: path.with_name(INDEX).write_text("{}"), "index.json is damaged"),
        (lambda path: path.with_name(INDEX).write_text('{"weight_map": {"a": "b"}}'), "b does not exist"),
    ],
)
def test_missing_or_damaged_files_are_refused(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    write_folder(tmp_path, WEIGHTS.items())
    damage(tmp_path / "model.safetensors")
    for read in (read_shapes, lambda folder: list(read_folder(folder))):
        with pytest.raises(UserError, match=message):
            read(tmp_path)
