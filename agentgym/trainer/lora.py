"""LoRA: adapters in torchtitan's configuration of a model, merged into its weights, stored, and as PEFT names them.

Axes: O outputs and I inputs of a matrix, R rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from agentgym.models.nf4 import plain
from agentgym.trainer import titan
from agentgym.trainer.config import DType, LoraConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.weights import adapters
from agentgym.weights.digest import digest

TITAN_NAMES = {
    "q_proj": "wq",
    "k_proj": "wkv",
    "v_proj": "wv",
    "o_proj": "wo",
    "gate_proj": "w1",
    "up_proj": "w3",
    "down_proj": "w2",
}
"""Of the matrices' configurations. That of keys is called wkv; see `SeparateQKV`."""
A, B = "lora_a.weight", "lora_b.weight"


class SeparateQKV(titan.QKVLinear):  # type: ignore[misc]  # torchtitan has no types
    """Queries, keys and values each with an adapter of its own: torchtitan has one configuration for the latter two."""

    @dataclass(kw_only=True, slots=True)
    class Config(titan.QKVLinear.Config):  # type: ignore[misc]
        """wkv: of the keys."""

        wv: Any

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.wv = config.wv.build()


def is_adapter(name: str) -> bool:
    return name.endswith((A, B))


def with_adapters(config: Any, lora: LoraConfig) -> Any:
    """torchtitan's configuration of the model, changed: adapters at the targets, all else frozen."""
    targets = [TITAN_NAMES[name] for name in lora.targets]
    settings = titan.LoRAConverter.Config(rank=lora.rank, alpha=lora.alpha, target_modules=targets)
    return titan.LoRAConverter(settings).convert(config)


def store_frozen_as(model: nn.Module, dtype: DType) -> None:
    """Give the frozen weights the type that they are multiplied in. Before the model is sharded."""
    for weight in model.parameters():
        if not weight.requires_grad and weight.is_floating_point():
            weight.data = weight.data.to(getattr(torch, dtype))


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model is its base until the end."""
    adapted = [module for module in model.modules() if hasattr(module, titan.LORA_SCALE)]
    scales = [getattr(module, titan.LORA_SCALE) for module in adapted]
    try:
        for module in adapted:
            setattr(module, titan.LORA_SCALE, 0.0)
        yield
    finally:
        for module, scale in zip(adapted, scales, strict=True):
            setattr(module, titan.LORA_SCALE, scale)


def merged(state: Mapping[str, Tensor], name: str, lora: LoraConfig, dtype: torch.dtype) -> Tensor | None:
    """W + scale * B A of the weight of this name, [O, I] in float32; None for one without an adapter. Collective.

    dtype: that W is multiplied in.
    """
    stem = name.removesuffix("weight")
    if stem + A not in state:
        return None
    a_RI, b_OR = full(state[stem + A]), full(state[stem + B])
    return adapters.merge(full(state[name], dtype), a_RI, b_OR, lora.scale)


def whole_adapters(model: nn.Module, names: Any) -> Iterator[tuple[str, Tensor]]:
    """All of them, gathered one by one. names: torchtitan's to Hugging Face's. Collective."""
    state = model.state_dict()
    for hf_name, key in names.to_hf({key: key for key in state}).items():
        stem, hf_stem = key.removesuffix("weight"), hf_name.removesuffix("weight")
        if stem + A in state:
            yield hf_stem + adapters.A, full(state[stem + A])
            yield hf_stem + adapters.B, full(state[stem + B])


def peft_weights(model: nn.Module, names: Any) -> dict[str, Tensor]:
    """All adapters, whole, under PEFT's names. Collective."""
    return {f"base_model.model.{name}": weight for name, weight in whole_adapters(model, names)}


class StoredAdapters:
    """What is stored of a model whose adapters alone are trained."""

    def __init__(self, model: nn.Module, names: Any, setup: TrainerSetup, device: torch.device) -> None:
        """device: of all that is stored."""
        self._model, self._names, self._setup, self._device = model, names, setup, device
        self._note: adapters.AdapterNote | None = None

    def version(self) -> Iterator[tuple[str, Tensor]]:
        """A note, then the adapters as they are now. The first gathers the base once, for its digest. Collective."""
        if self._note is None:
            trainer, dtype = self._setup.trainer, self._setup.publish_dtype
            self._note = adapters.AdapterNote(
                scale=trainer.lora.scale,
                base_dtype=trainer.dtype,
                dtype=dtype,
                base=self.base_digest(),
                quantize=self._setup.quantize,
            )
        yield adapters.NOTE, self._note.to_tensor(self._device)
        yield from whole_adapters(self._model, self._names)

    def base_digest(self) -> str:
        """The digest of this trainer's base weights, as readers compute it from their own folder. Collective."""
        state, dtype = self._model.state_dict(), getattr(torch, self._setup.trainer.dtype)
        named = self._names.to_hf({key: key for key in state})
        return digest((name, full(state[key], dtype)) for name, key in named.items())


def peft_config(lora: LoraConfig, base: str) -> dict[str, object]:
    """What adapter_config.json contains. base: the model that they belong to."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "target_modules": [*lora.targets],
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def full(weight: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """All of it, cast before it is gathered; of NF4, after. Collective, where it is sharded over several ranks."""
    if isinstance(weight, DTensor) and weight.device_mesh.size() == 1:
        weight = weight.to_local()  # each operation on a DTensor takes a processor ten times as long
    packed = weight.dtype == torch.uint8
    weight = weight.detach() if dtype is None or packed else weight.detach().to(dtype)
    whole = weight.full_tensor() if isinstance(weight, DTensor) else weight
    return plain(whole, dtype or torch.float32) if packed else whole
