"""Context parallelism: the ranks of a row share its tokens, and each attends to the keys and values of all.

Every rank has two pieces of a row, one of its first half and one of its second, so that causal attention is as much
work on each (Llama 3, arXiv:2407.21783, section 3.3.2). Keys and values are gathered before attention, and their
gradients are summed and scattered after it.

Axes: R rows, L tokens of a row, Q of them on this rank, K all of them as they are gathered, N tokens to score.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._functional_collectives import all_gather_single_autograd, wait_tensor

from agentgym.trainer import titan
from agentgym.trainer.attention import additive_mask


@dataclass(frozen=True, slots=True)
class Context:
    """This rank's part of every row. group: the ranks that share rows; None where each has whole ones."""

    group: dist.ProcessGroup | None = None

    @property
    def size(self) -> int:
        return 1 if self.group is None else self.group.size()

    @property
    def rank(self) -> int:
        return 0 if self.group is None else self.group.rank()

    def own(self, length: int, device: torch.device) -> Tensor:
        """Which tokens of a row this rank has, [Q]."""
        return _pieces(length, self.size, device)[self.rank]

    def order(self, length: int, device: torch.device) -> Tensor:
        """Which tokens the gathered keys and values are of, [K]."""
        return torch.cat(_pieces(length, self.size, device))

    def entries(self, entries_N: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """entries_N: of the flattened [R * L]. Which of them are here, [N], and their entries in [R * Q]."""
        own_Q = self.own(length, entries_N.device)
        place_L = torch.full((length,), -1, device=entries_N.device)
        place_L[own_Q] = torch.arange(len(own_Q), device=entries_N.device)
        place_N = place_L[entries_N % length]
        here_N = place_N >= 0
        return here_N, (entries_N // length * len(own_Q) + place_N)[here_N]

    def of_all(self, own: Tensor, here_N: Tensor) -> Tensor:
        """own: [2, n] of the entries that are here. Those of all ranks, [2, N]; a gradient reaches the own alone.

        So every rank computes the loss of the whole row, and its gradient for its own part of the row.
        """
        placed_2N = own.new_zeros(2, len(here_N)).masked_scatter(here_N.expand(2, -1), own)
        all_2N = placed_2N.detach().clone()
        dist.all_reduce(all_2N, group=self.group)
        return all_2N + (placed_2N - placed_2N.detach())

    def rows_of_all(self, own_ND: Tensor, here_N: Tensor) -> Tensor:
        """The rows [n, D] of all ranks, without a gradient: [N, D]."""
        all_ND = own_ND.new_zeros(len(here_N), own_ND.shape[1])
        all_ND[here_N] = own_ND
        dist.all_reduce(all_ND, group=self.group)
        return all_ND

    def mask(self, positions_RL: Tensor, *, flex: bool, dtype: torch.dtype) -> Any:
        """What the own tokens may attend to: those before them in their document, and themselves.

        A BlockMask of [R, 1, Q, K] for flex attention, else what is added to the scores, in this form.
        """
        device, length = positions_RL.device, positions_RL.shape[1]
        own_Q, order_K = self.own(length, device), self.order(length, device)
        document_RL = (positions_RL == 0).cumsum(1)
        of_query_RQ, of_key_RK = document_RL[:, own_Q], document_RL[:, order_K]
        if not flex:
            earlier_QK = order_K <= own_Q[:, None]
            return additive_mask((of_query_RQ[:, :, None] == of_key_RK[:, None]) & earlier_QK, dtype)

        def allowed(row: Tensor, _: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (of_query_RQ[row, query] == of_key_RK[row, key]) & (order_K[key] <= own_Q[query])

        shape = (len(positions_RL), None, len(own_Q), length)
        return titan.create_attention_mask(allowed, *shape, device=device)


def _pieces(length: int, size: int, device: torch.device) -> list[Tensor]:
    first = torch.arange(length, device=device).chunk(2 * size)
    return [torch.cat([first[rank], first[2 * size - 1 - rank]]) for rank in range(size)]


def gather_context(attentions: Sequence[Any], mesh: Any) -> None:
    """Attention gets the keys and values of all ranks of a row."""
    for attention in attentions:
        attention.forward = partial(_attend, attention.forward, mesh.get_group())


def _attend(
    forward: Callable[..., Tensor],
    group: dist.ProcessGroup,
    q_BQNH: Tensor,
    k_BQNH: Tensor,
    v_BQNH: Tensor,
    **given: Any,
) -> Tensor:
    gathered = [all_gather_single_autograd(one.contiguous(), 1, group) for one in (k_BQNH, v_BQNH)]
    # flex attention can't be compiled for tensors that are still waited for, which those of a single row are
    k_BKNH, v_BKNH = map(wait_tensor, gathered)
    return forward(q_BQNH, k_BKNH, v_BKNH, **given)
