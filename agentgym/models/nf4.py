"""NF4: matrices in 4.5 bits a number, with the codes and scales of bitsandbytes, on any device. arXiv:2305.14314, 3.

Blocks of 64 numbers along a row share a scale, their largest magnitude. Each block is 36 bytes: 32 of codes, the first
number of each in its high half, and a float32. Axes: O outputs and I inputs of a matrix, N blocks of a row.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from agentgym.families.quantized import BLOCK, BLOCK_BYTES

LEVELS = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_CODES = BLOCK // 2  # bytes


def to_nf4(weight_OI: Tensor) -> Tensor:
    """The nearest levels: bytes, [O, N * 36]. I is a multiple of 64."""
    levels, rows = _levels(weight_OI.device), len(weight_OI)
    blocks_ON = weight_OI.detach().float().reshape(rows, -1, BLOCK)
    scales_ON1 = blocks_ON.abs().amax(-1, keepdim=True)
    scaled_ON = blocks_ON * (1.0 / scales_ON1.clamp(min=1e-38))
    codes_ON = torch.bucketize(scaled_ON.clamp(-1, 1), (levels[1:] + levels[:-1]) / 2, out_int32=True).to(torch.uint8)
    pairs_ON = (codes_ON[..., ::2] << 4) | codes_ON[..., 1::2]
    return torch.cat([pairs_ON, scales_ON1.view(torch.uint8)], -1).flatten(1)


@torch.library.custom_op("agentgym::from_nf4", mutates_args=())
def from_nf4(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix of `to_nf4`, [O, I]: products in float32, rounded to the type."""
    blocks_ON = packed.reshape(len(packed), -1, BLOCK_BYTES)
    scales_ON = blocks_ON[..., _CODES:].contiguous().view(torch.float32)
    pairs_ON = torch.nn.functional.embedding(blocks_ON[..., :_CODES].int(), _pairs(packed.device))
    return pairs_ON.flatten(2).mul_(scales_ON).flatten(1).to(dtype)


@from_nf4.register_fake
def _(packed: Tensor, dtype: torch.dtype) -> Tensor:
    return packed.new_empty((packed.shape[0], packed.shape[1] // BLOCK_BYTES * BLOCK), dtype=dtype)


def plain(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Any weight in the type; one of bytes is of `to_nf4`."""
    return from_nf4(weight, dtype) if weight.dtype == torch.uint8 else weight.to(dtype)


def plain_shape(weight: Tensor) -> tuple[int, ...]:
    """The shape of `plain`."""
    rows, *columns = weight.shape
    return (rows, columns[0] // BLOCK_BYTES * BLOCK) if weight.dtype == torch.uint8 else tuple(weight.shape)


class _Product(torch.autograd.Function):
    """The matrix exists while it is multiplied: the backward pass makes it again."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, input: Tensor, packed: Tensor) -> Tensor:
        ctx.save_for_backward(packed)
        return torch.nn.functional.linear(input, from_nf4(packed, input.dtype))

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, *gradients: Tensor) -> tuple[Tensor, None]:
        (packed,) = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradients[0] @ from_nf4(packed, gradients[0].dtype), None


def linear(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """As torch's, with a matrix of float or of `to_nf4`, which gets no gradient."""
    if weight.dtype != torch.uint8:
        return torch.nn.functional.linear(input, weight, bias)
    product: Tensor = _Product.apply(input, weight)  # type: ignore[no-untyped-call]
    return product if bias is None else product + bias


@cache
def _levels(device: torch.device) -> Tensor:
    return torch.tensor(LEVELS, device=device)


@cache
def _pairs(device: torch.device) -> Tensor:
    """The two levels of each byte of codes, [256, 2]."""
    levels = _levels(device)
    return torch.stack([levels.repeat_interleave(16), levels.repeat(16)], 1)
