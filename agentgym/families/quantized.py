"""Which matrices of a model are stored in 4 bits, and what they take. No torch."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from agentgym.errors import UserError
from agentgym.families.architecture import Architecture
from agentgym.families.registry import family_of

Quantize: TypeAlias = Literal["none", "nf4"]
BLOCK = 64
"""Numbers of a row that share a scale."""
BLOCK_BYTES = 36
"""Their codes, of half a byte each, and the scale."""


def quantized_shapes(model: Architecture, scheme: str) -> dict[str, tuple[int, ...]]:
    """The matrices that adapters can change, by name in files: all of a layer that a linear module multiplies.

    Norms, embeddings and the head stay as they are. Raises UserError for a model of which that would leave most.
    """
    if scheme == "none":
        return {}
    if model.experts is not None:
        raise UserError(
            f"model.quantize is {scheme}, and most weights of a {model.model_type} are experts, which are not "
            "quantized: leave it out, or take a model without experts"
        )
    targets = family_of(model).adapter_targets
    found: dict[str, tuple[int, ...]] = {
        name: shape
        for name, shape in model.hf_shapes().items()
        if len(shape) == 2 and name.endswith(".weight") and name.split(".")[-2] in targets
    }
    for name, shape in found.items():
        if shape[1] % BLOCK:
            raise UserError(
                f"model.quantize is {scheme}, which needs matrices whose rows are a multiple of {BLOCK} numbers; "
                f"{name} has rows of {shape[1]}: leave model.quantize out"
            )
    if not found:
        raise UserError(f"model.quantize is {scheme}, and a {model.model_type} has none of {', '.join(targets)}")
    return found


def quantized_parameters(model: Architecture, scheme: str) -> int:
    """Numbers in these matrices."""
    return sum(math.prod(shape) for shape in quantized_shapes(model, scheme).values())
