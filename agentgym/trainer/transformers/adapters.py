"""Adapters beside the matrices of a model of transformers, whose names are those of PEFT.

Axes: O outputs and I inputs of a matrix, R rank.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from agentgym.errors import UserError
from agentgym.families.quantized import BLOCK, BLOCK_BYTES
from agentgym.models import nf4
from agentgym.trainer.config import LoraConfig
from agentgym.trainer.transformers.model import Decoder


class QuantizedLinear(nn.Linear):
    """y = W x of a W in NF4, which is made as it is multiplied. See models/nf4.py."""

    def __init__(self, matrix: nn.Linear) -> None:
        super().__init__(matrix.in_features, matrix.out_features, matrix.bias is not None, device="meta")
        packed = torch.empty(matrix.out_features, matrix.in_features // BLOCK * BLOCK_BYTES, dtype=torch.uint8)
        self.weight = nn.Parameter(packed.to("meta"), requires_grad=False)
        self.bias = matrix.bias

    def forward(self, input: Tensor) -> Tensor:
        return nf4.linear(input, self.weight, self.bias)


class AdaptedLinear(nn.Linear):
    """y = W x + scale * B A x. The scale is 0 where the base alone computes; see `trainer/lora.py`."""

    def __init__(self, matrix: nn.Linear, lora: LoraConfig) -> None:
        super().__init__(matrix.in_features, matrix.out_features, matrix.bias is not None, device="meta")
        self.weight = matrix.weight
        self.bias = matrix.bias
        self.lora_a = nn.Linear(matrix.in_features, lora.rank, bias=False, device="meta")
        self.lora_b = nn.Linear(lora.rank, matrix.out_features, bias=False, device="meta")
        self._lora_scaling = lora.scale

    def forward(self, input: Tensor) -> Tensor:
        plain = nf4.linear(input, self.weight, self.bias)
        return plain if not self._lora_scaling else plain + self._lora_scaling * self.lora_b(self.lora_a(input))


def quantize_matrices(decoder: Decoder, names: Iterable[str]) -> None:
    """Give the matrices of these weights room for NF4 alone. On the meta device, before adapters are added.

    Raises UserError for one that the model does not multiply by a linear module.
    """
    for name in names:
        parent, _, child = name.removesuffix(".weight").rpartition(".")
        matrix = getattr(decoder.get_submodule(parent), child, None)
        if not isinstance(matrix, nn.Linear):
            raise UserError(f"model.quantize is nf4, and {name} is not of a linear module: leave model.quantize out")
        setattr(decoder.get_submodule(parent), child, QuantizedLinear(matrix))


def add_adapters(decoder: Decoder, lora: LoraConfig) -> None:
    """On the meta device; all else is frozen. Raises UserError for a target that the layers do not have."""
    found = set[str]()
    decoder.requires_grad_(False)
    for layer in decoder.layers:
        for parent in list(layer.modules()):
            for name, child in list(parent.named_children()):
                if name in lora.targets and isinstance(child, nn.Linear):
                    found.add(name)
                    setattr(parent, name, AdaptedLinear(child, lora))
    if missing := [name for name in lora.targets if name not in found]:
        matrices = {name for layer in decoder.layers for name in _matrices(layer)} - {"lora_a", "lora_b"}
        raise UserError(
            f"trainer.lora.targets has {', '.join(missing)}, and the layers of this model have "
            f"{', '.join(sorted(matrices))}: give some of those"
        )


def _matrices(module: nn.Module) -> list[str]:
    """The last parts of their names."""
    return [name.rpartition(".")[2] for name, one in module.named_modules() if isinstance(one, nn.Linear)]


@torch.no_grad()
def draw_adapters(decoder: Decoder, seed: int) -> None:
    """A at random as torchtitan draws it, B zero: the model begins as its base. The same on any number of ranks."""
    drawn = torch.Generator().manual_seed(seed)
    for module in decoder.modules():
        if isinstance(module, AdaptedLinear):
            a_RI, bound = module.lora_a.weight, 1.0 / math.sqrt(module.in_features)
            whole_RI = torch.empty(a_RI.shape).uniform_(-bound, bound, generator=drawn).to(a_RI.device)
            if isinstance(a_RI, DTensor):
                a_RI.copy_(distribute_tensor(whole_RI, a_RI.device_mesh, a_RI.placements))
            else:
                a_RI.copy_(whole_RI)
            module.lora_b.weight.zero_()
