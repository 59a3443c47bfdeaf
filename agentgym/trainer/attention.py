"""Attention over packed rows: flex attention, and where that can't run torch's own with a mask per document.

Axes: B rows, L tokens, N heads, H size of a head.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from agentgym.trainer.titan import FlexAttention, Module


class PackedFlex(FlexAttention):  # type: ignore[misc]  # torchtitan has no types
    """torchtitan's flex attention, compiled without its search for the fastest kernel: seconds instead of minutes."""

    compiled: ClassVar[Callable[..., Tensor] | None] = None  # one for all layers

    @dataclass(kw_only=True, slots=True)
    class Config(FlexAttention.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        if PackedFlex.compiled is None:
            PackedFlex.compiled = torch.compile(
                flex_attention, options={"wrap_inductor_compiled_regions": True, "triton.cudagraphs": False}
            )

    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: BlockMask,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: object,
    ) -> Tensor:
        q_BNLH, k_BNLH, v_BNLH = (one.transpose(1, 2) for one in (q_BLNH, k_BLNH, v_BLNH))
        given = {"scale": scale, "enable_gqa": enable_gqa, "kernel_options": self.kernel_options}
        assert PackedFlex.compiled is not None
        return PackedFlex.compiled(q_BNLH, k_BNLH, v_BNLH, block_mask=attention_masks, **given).transpose(1, 2)


class PackedSDPA(Module):  # type: ignore[misc]  # torchtitan has no types
    """Takes the place of torchtitan's inner attention: flex has no backward pass on a CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config) -> None:
        super().__init__()

    def forward(
        self,
        q_BLNH: Tensor,
        k_BLNH: Tensor,
        v_BLNH: Tensor,
        *,
        attention_masks: Tensor | None = None,
        scale: float | None = None,
        enable_gqa: bool = False,
        **_: object,
    ) -> Tensor:
        """attention_masks: what `packed_mask` gives, or None for plain causal attention."""
        out_BNLH = F.scaled_dot_product_attention(
            q_BLNH.transpose(1, 2),
            k_BLNH.transpose(1, 2),
            v_BLNH.transpose(1, 2),
            attn_mask=attention_masks,
            is_causal=attention_masks is None,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return out_BNLH.transpose(1, 2)


def packed_mask(positions_BL: Tensor, dtype: torch.dtype) -> Tensor | None:
    """What is added to the scores, [B, 1, L, L]: 0 within a document up to oneself, else -inf.

    None when plain causal attention does the same: every row is one document, then padding. It is made once
    for all layers, and of numbers, because torch would convert a boolean mask in every layer.
    """
    starts_BL = positions_BL == 0
    if bool((starts_BL[:, 1:].int().diff(dim=1) >= 0).all()):
        return None  # after the first token only padding has position 0
    document_BL = starts_BL.cumsum(1)
    length = positions_BL.shape[1]
    causal_LL = torch.ones(length, length, dtype=torch.bool, device=positions_BL.device).tril()
    return additive_mask((document_BL[:, :, None] == document_BL[:, None, :]) & causal_LL, dtype)


def additive_mask(allowed_BQK: Tensor, dtype: torch.dtype) -> Tensor:
    """[B, 1, Q, K]: 0 where a query may attend to a key, else -inf."""
    mask_BQK = torch.zeros(allowed_BQK.shape, dtype=dtype, device=allowed_BQK.device)
    return mask_BQK.masked_fill_(~allowed_BQK, float("-inf"))[:, None]
