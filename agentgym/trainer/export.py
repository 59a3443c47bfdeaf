"""Weights in and out in Hugging Face format."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.tensor import DTensor, distribute_tensor

from agentgym.errors import UserError
from agentgym.models.safetensors import read_folder, write_folder, write_tensors
from agentgym.runs.files import publish, sync_all
from agentgym.trainer.config import LoraConfig, TrainerConfig
from agentgym.trainer.lora import full, merged, peft_config, peft_weights
from agentgym.trainer.parallel import Ranks, expected_warnings_off
from agentgym.trainer.setup import TrainerSetup

WEIGHT_SUFFIXES = (".safetensors", ".bin", ".index.json", ".pt", ".pth", ".gguf")
ADAPTERS = "adapter"
"""Its own folder: beside the merged weights transformers would apply them a second time."""


def load_hf(model: nn.Module, adapter: Any, folder: str, *, sharded: bool) -> None:
    """Read safetensors over the model's weights; each rank reads what it holds. Collective.

    Raises UserError when a weight is missing, has another shape, or is unreadable.
    """
    state = model.state_dict()
    if adapter.joins:
        weights = _load_joined(adapter.to_hf(state), adapter, folder)
        model.load_state_dict(state | adapter.from_hf(weights), strict=True)
        return
    weights = adapter.to_hf(state)
    try:
        with expected_warnings_off():
            load(weights, storage_reader=HuggingFaceStorageReader(folder), no_dist=not sharded)
    except Exception as error:  # the reader raises errors of many kinds
        raise UserError(f"the weights in {folder} could not be loaded: {error}") from error
    model.load_state_dict(state | adapter.from_hf(weights), strict=True)


def _load_joined(state: dict[str, Tensor], adapter: Any, folder: str) -> dict[str, Tensor]:
    """state: by Hugging Face name; it is changed."""
    missing = set(state)
    try:
        for name, given in adapter.joined(read_folder(Path(folder))):
            if name in missing:
                state[name].copy_(_as_own(state[name], given))
                missing.remove(name)
    except (ValueError, RuntimeError, KeyError) as error:
        raise UserError(f"the weights in {folder} could not be loaded: {error}") from error
    if missing:
        raise UserError(f"the weights in {folder} could not be loaded: there is no {sorted(missing)[0]}")
    return state


def _as_own(own: Tensor, given: Tensor) -> Tensor:
    """The given weight where the own one is: on its device, in its type, sharded as it is. Collective."""
    value = given.to(own.device, own.dtype)
    return distribute_tensor(value, own.device_mesh, own.placements) if isinstance(own, DTensor) else value


def mix_weights(model: nn.Module, adapter: Any, weights: Iterable[tuple[str, Tensor]], share: float) -> None:
    """Move each weight by `share` of the way to the given one of its Hugging Face name. Collective."""
    own = adapter.to_hf(model.state_dict())
    for name, given in adapter.joined(weights):
        own[name] = torch.lerp(own[name], _as_own(own[name], given), share)
    model.load_state_dict(adapter.from_hf(own), strict=True)


def full_hf_weights(
    model: nn.Module, adapter: Any, dtype: torch.dtype, trainer: TrainerConfig
) -> Iterator[tuple[str, Tensor]]:
    """Full tensors under Hugging Face names, each cast and then gathered, one by one; LoRA's are merged. Collective."""
    computed = getattr(torch, trainer.dtype)
    for prefix, module in parts_of(model):
        state = module.state_dict(prefix=prefix)
        for name, key in adapter.to_hf({key: key for key in state}).items():
            whole = merged(state, key, trainer.lora, computed)
            if whole is None:
                whole = full(state[key], computed if state[key].dtype == torch.uint8 else dtype)
            yield from adapter.separated(name, whole.to(dtype))


def write_gathered(
    ranks: Ranks, write: Callable[[Iterator[tuple[str, Tensor]]], None], weights: Iterator[tuple[str, Tensor]]
) -> None:
    """Gather the weights on every rank; rank 0 passes them to `write`. Collective, also after an error."""
    try:
        if ranks.rank == 0:
            write(weights)
    finally:
        for _ in weights:  # the other ranks wait for every tensor
            pass
        ranks.barrier()


def parts_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Its layers and other parts, with the prefix of their weights' names. torchtitan takes fused weights apart in
    copies, whole on each rank and in float32: of all layers at once they would be a ninth of an 8B model's.
    """
    for name, child in model.named_children():
        inner = child.named_children() if isinstance(child, (nn.ModuleDict, nn.ModuleList)) else ()
        yield from [(f"{name}.{number}.", layer) for number, layer in inner] or [(f"{name}.", child)]


def exporter(
    folder: str,
    model: nn.Module,
    adapter: Any,
    setup: TrainerSetup,
    kept: Callable[[Tensor], Tensor] = lambda tensor: tensor,
    named: bool = True,
) -> Callable[[Iterator[tuple[str, Tensor]]], None]:
    """What writes weights into a Hugging Face folder of the run's own, as `export_folder`. Collective.

    kept: what is written of the adapters, which are gathered now. named: whether it gets its name; otherwise
    `name_export` gives it.
    """
    lora = setup.trainer.lora
    whole = peft_weights(model, adapter) if lora.rank else {}
    adapters = {name: kept(weight) for name, weight in whole.items()} or None
    return partial(
        export_folder,
        folder,
        setup.model_path,
        chat_template=setup.chat_template,
        adapters=adapters,
        lora=lora,
        named=named,
    )


def export_folder(
    folder: str,
    model_path: str,
    weights: Iterator[tuple[str, Tensor]],
    *,
    chat_template: str = "",
    adapters: Mapping[str, Tensor] | None = None,
    lora: LoraConfig | None = None,
    named: bool = True,
) -> None:
    """Write weights, config.json and the files beside the weights in model_path. Whole or not at all, if it is named.

    chat_template: takes the place of the model's own, unless it is empty. adapters: of the lora, by PEFT's names; they
    get a folder of their own in it.
    """
    target = Path(folder)
    partial = target.with_name(target.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    write_folder(partial, weights)
    for file in Path(model_path).iterdir():
        if file.is_file() and not file.name.endswith(WEIGHT_SUFFIXES):
            shutil.copyfile(file, partial / file.name)
    _change(partial / "config.json", torch_dtype=None, dtype="float32")
    if chat_template:
        if (settings := partial / "tokenizer_config.json").is_file():
            _change(settings, chat_template=None)
        (partial / "chat_template.jinja").write_text(chat_template, encoding="utf-8")
    if adapters and lora is not None:
        _write_adapters(partial / ADAPTERS, model_path, adapters, lora)
    if named:
        name_export(folder)
    else:
        sync_all(partial)


def name_export(folder: str) -> None:
    """Renames a whole export from FOLDER.partial to FOLDER."""
    publish(Path(folder).with_name(f"{Path(folder).name}.partial"), Path(folder))


def _write_adapters(folder: Path, model_path: str, adapters: Mapping[str, Tensor], lora: LoraConfig) -> None:
    folder.mkdir()
    with (folder / "adapter_model.safetensors").open("w+b") as file:
        write_tensors(file, adapters.items())
    text = json.dumps(peft_config(lora, model_path), indent=2)
    (folder / "adapter_config.json").write_text(text + "\n", encoding="utf-8")


def _change(file: Path, **fields: str | None) -> None:
    """Set the fields of a JSON file; None removes one."""
    config = json.loads(file.read_text(encoding="utf-8")) | fields
    kept = {key: value for key, value in config.items() if key not in fields or value is not None}
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
