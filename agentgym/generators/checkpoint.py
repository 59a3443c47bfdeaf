"""Weights under Hugging Face names: read from a model folder, and checked before an engine takes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from agentgym.errors import UserError

_TIED_HEAD = "lm_head.weight"  # the one name that need not come


def read_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, one file or sharded. Raises UserError where it has none or a broken one."""
    from safetensors import SafetensorError, safe_open

    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    yield name, tensors.get_tensor(name)
        except SafetensorError as error:
            raise UserError(f"{path} is no readable safetensors file: {error}") from error


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and sizes of a folder's tensors without reading them; a tied lm_head is left out."""
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for path in _files(folder):
        try:
            with safe_open(path, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118 (not a mapping)
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        except SafetensorError as error:
            raise UserError(f"{path} is no readable safetensors file: {error}") from error
    if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False):
        shapes.pop(_TIED_HEAD, None)
    return shapes


def collect(
    wanted: Mapping[str, tuple[int, ...]], weights: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """Exactly the wanted weights, by name. An lm_head that is not wanted is tied, and dropped.

    Raises ValueError for a weight that is missing, unknown, repeated or of another size.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in weights:
        if name == _TIED_HEAD and name not in wanted:
            continue
        if name in found:
            raise ValueError(f"weight {name!r} came twice")
        if name not in wanted:
            raise ValueError(f"weight {name!r} is not one of this model's {len(wanted)}")
        if tuple(tensor.shape) != wanted[name]:
            raise ValueError(
                f"weight {name!r} has shape {tuple(tensor.shape)}; the model's is {wanted[name]}"
            )
        found[name] = tensor
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"{len(missing)} of {len(wanted)} weights did not come, first {missing[:3]}")
    return found


def _files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    else:
        names = ["model.safetensors"]
    for name in names:
        if not (folder / name).is_file():
            raise UserError(
                f"no weights: {folder / name} does not exist. Give a Hugging Face model folder "
                "(config.json and *.safetensors)."
            )
    return [folder / name for name in names]
