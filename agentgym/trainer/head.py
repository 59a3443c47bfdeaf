"""The model's last layer as log-probabilities of given tokens: the logits never exist all at once.

Axes: B rows, L tokens of a row, N tokens to score, D model dimension, V vocabulary (this rank's part of it).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor, Replicate

from agentgym.models.matmul import matmul_float32
from agentgym.trainer.titan import Linear


@dataclass(slots=True)
class _Shard:
    """Which part of the vocabulary this rank holds, and how it sums with the others."""

    group: dist.ProcessGroup | None
    size: int

    def reduce(self, values: Tensor, operation: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> None:
        if self.group is not None:
            dist.all_reduce(values, operation, self.group)

    def locate(self, labels_N: Tensor) -> tuple[Tensor, Tensor]:
        """Column of each label in this part, [N, 1], and whether it is here at all, [N]."""
        local_N = labels_N if self.group is None else labels_N - dist.get_rank(self.group) * self.size
        here_N = (local_N >= 0) & (local_N < self.size)
        return local_N.clamp(0, self.size - 1)[:, None], here_N


class ChunkedLogProb(torch.autograd.Function):
    """Log-probabilities and entropies from hidden states, a chunk of tokens at a time.

    Logits are float32 whatever the inputs are, and divided by the temperature there: rounded to bfloat16 they would
    move a log-probability by as much as training does between two versions.

    The backward pass computes a chunk's logits again, unless there was one chunk only: then they were kept.
    Besides the inputs at most about three chunks times the vocabulary are in memory, in float32.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        labels_N: Tensor,
        chunk: int,
        shard: _Shard,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities [N] and entropies [N], float32; entropies carry a gradient if asked to."""
        count = hidden_ND.shape[0]
        logprobs_N = hidden_ND.new_empty(count, dtype=torch.float32)
        entropy_N, normalizer_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        kept_NV = None
        for first in range(0, count, chunk):
            part = slice(first, first + chunk)
            logits_NV = matmul_float32(hidden_ND[part], weight_VD.t()).div_(temperature)
            column_N1, here_N = shard.locate(labels_N[part])
            target_N = torch.where(here_N, logits_NV.gather(1, column_N1)[:, 0], 0.0)
            highest_N = logits_NV.amax(1)
            shard.reduce(highest_N, dist.ReduceOp.MAX)
            exps_NV = (logits_NV - highest_N[:, None]).exp_()
            sums_3N = torch.stack([exps_NV.sum(1), torch.linalg.vecdot(exps_NV, logits_NV), target_N])
            shard.reduce(sums_3N)
            normalizer_N[part] = highest_N + sums_3N[0].log()
            logprobs_N[part] = sums_3N[2] - normalizer_N[part]
            entropy_N[part] = normalizer_N[part] - sums_3N[1] / sums_3N[0]
            if count <= chunk:
                kept_NV = exps_NV.div_(sums_3N[0][:, None])
        of_entropy_N = entropy_N if entropy_gradient else None
        ctx.save_for_backward(hidden_ND, weight_VD, labels_N, normalizer_N, kept_NV, of_entropy_N)  # type: ignore[arg-type]
        ctx.chunk, ctx.shard, ctx.temperature = chunk, shard, temperature  # type: ignore[attr-defined]
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad_N: Tensor, entropy_grad_N: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None, None, None]:
        """With p = softmax(z): d log p_label / dz = onehot - p, and d H / dz = -p (log p + H)."""
        hidden_ND, weight_VD, labels_N, normalizer_N, kept_NV, entropy_N = ctx.saved_tensors  # type: ignore[attr-defined]
        chunk, shard, temperature = ctx.chunk, ctx.shard, ctx.temperature  # type: ignore[attr-defined]
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        trained = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if trained else None
        for first in range(0, hidden_ND.shape[0], chunk):
            part = slice(first, first + chunk)
            if kept_NV is None:
                logits_NV = matmul_float32(hidden_ND[part], weight_VD.t()).div_(temperature)
                probabilities_NV = logits_NV.sub_(normalizer_N[part, None]).exp_()
            else:
                probabilities_NV = kept_NV
            column_N1, here_N = shard.locate(labels_N[part])
            scaled_NV = probabilities_NV * -grad_N[part, None]
            scaled_NV.scatter_add_(1, column_N1, torch.where(here_N, grad_N[part], 0.0)[:, None])
            if entropy_N is not None:
                falls_NV = torch.special.entr(probabilities_NV).sub_(probabilities_NV * entropy_N[part, None])
                scaled_NV.addcmul_(falls_NV, entropy_grad_N[part, None])
            scaled_NV = scaled_NV.div_(temperature).to(hidden_ND.dtype)
            grad_hidden_ND[part] = scaled_NV @ weight_VD
            if grad_weight_VD is not None:
                grad_weight_VD += scaled_NV.t() @ hidden_ND[part]
        shard.reduce(grad_hidden_ND)  # every rank has all hidden states, and a part of their gradient
        of_weight_VD = None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_ND, of_weight_VD, None, None, None, None, None


class LogProbHead(Linear):  # type: ignore[misc]  # torchtitan has no types
    """Takes the place of lm_head. Set `targets` before the model is called."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        chunk: int = 1024
        temperature: float = 1.0
        entropy_gradient: bool = False

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.chunk = config.chunk
        self.temperature = config.temperature
        self.entropy_gradient = config.entropy_gradient
        self.targets: tuple[Tensor, Tensor] | None = None
        self.hidden: Tensor | None = None

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Log-probabilities and entropies, stacked: [2, N]; logits [B, L, V] while no targets are set.

        targets: entries [N] of the flattened [B * L], and for each the token [N] to score there. Their hidden states
        [N, D] are in `hidden` until the next call.
        """
        if self.targets is None:
            return super().forward(hidden_BLD)  # type: ignore[no-any-return]
        weight_VD, group = self.weight, None
        if isinstance(weight_VD, DTensor):
            group = weight_VD.device_mesh.get_group("tp")
            weight_VD = weight_VD.to_local()
        if isinstance(hidden_BLD, DTensor):
            assert all(placement.is_replicate() for placement in hidden_BLD.placements), hidden_BLD.placements
            replicated = [Replicate()] * hidden_BLD.device_mesh.ndim
            hidden_BLD = hidden_BLD.to_local(grad_placements=replicated)
        entries_N, labels_N = self.targets
        hidden_ND = hidden_BLD.flatten(0, 1).index_select(0, entries_N)
        self.hidden = hidden_ND.detach()
        shard = _Shard(group, weight_VD.shape[0])
        settings = (self.chunk, shard, self.temperature, self.entropy_gradient)
        scored = ChunkedLogProb.apply(hidden_ND, weight_VD, labels_N, *settings)  # type: ignore[no-untyped-call]
        return torch.stack(scored)
