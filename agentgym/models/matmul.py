"""Products of bfloat16 matrices whose sums stay in float32."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, both [.., ..], in float32 whatever their precision.

    The usual product of bfloat16 matrices rounds each sum to 8 bits: a logit of 20 is then off by up to 0.06.
    """
    if left.dtype == right.dtype != torch.float32 and has_wide_products(left.device, left.dtype):
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def add_matmul_float32(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, where total is float32: without a second matrix of its size."""
    if left.dtype == right.dtype != torch.float32 and has_wide_products(left.device, left.dtype):
        torch.addmm(total, left, right, out_dtype=torch.float32, out=total)
    else:
        total.addmm_(left.float(), right.float())


@cache
def has_wide_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a product there can have a wider result than its factors: on CUDA, and on those builds for ROCm that do
    not refuse it. No product on a CPU has.
    """
    if device.type != "cuda" or not torch.version.hip:
        return device.type == "cuda"
    factor = torch.ones(16, 16, dtype=dtype, device=device)
    try:
        product = torch.mm(factor, factor, out_dtype=torch.float32)
        add_to = torch.addmm(product, factor, factor, out_dtype=torch.float32)
        return bool((product == 16).all() and (add_to == 32).all())
    except RuntimeError:
        return False
