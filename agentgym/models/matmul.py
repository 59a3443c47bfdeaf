"""Products of bfloat16 matrices whose sums stay in float32."""

from __future__ import annotations

import torch
from torch import Tensor


def matmul_float32(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, both [.., ..], in float32 whatever their precision.

    The usual product of bfloat16 matrices rounds each sum to 8 bits: a logit of 20 is then off by up to 0.06.
    """
    if left.is_cuda and left.dtype == right.dtype != torch.float32:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()  # no product on a CPU has a wider result than its factors
