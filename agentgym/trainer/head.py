"""The model's last layer as log-probabilities of given tokens: the logits never exist all at once.

Axes: B rows, L tokens of a row, N tokens to score, D model dimension, V vocabulary (this rank's part of it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.distributed.tensor import DTensor, Replicate

from agentgym.families.architecture import HeadTransform
from agentgym.models.matmul import add_matmul_float32, matmul_float32
from agentgym.rl.packing import even_slices
from agentgym.trainer.dynamic import of_any_length
from agentgym.trainer.setup import TrainerSetup
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


def _statistics(logits_NV: Tensor, column_N1: Tensor, temperature: float) -> Tensor:
    """Statistics of each row of the logits over the temperature: highest, sum of exps below it, their product with the
    logits' sum, and what is in `column`. [4, N]
    """
    scaled_NV = logits_NV / temperature
    highest_N = scaled_NV.amax(1)
    exps_NV = (scaled_NV - highest_N[:, None]).exp_()
    target_N = scaled_NV.gather(1, column_N1)[:, 0]
    return torch.stack([highest_N, exps_NV.sum(1), torch.linalg.vecdot(exps_NV, scaled_NV), target_N])


def _gradient(
    logits_NV: Tensor, normalizer_N: Tensor, factor_N: Tensor, temperature: float, dtype: torch.dtype
) -> Tensor:
    """-p * factor / temperature, [N, V], with p = softmax(logits / temperature)."""
    return ((logits_NV / temperature - normalizer_N[:, None]).exp_() * (factor_N / -temperature)[:, None]).to(dtype)


def _gradient_with_entropy(
    logits_NV: Tensor,
    normalizer_N: Tensor,
    factor_N: Tensor,
    temperature: float,
    dtype: torch.dtype,
    entropy_N: Tensor,
    entropy_grad_N: Tensor,
) -> Tensor:
    """The gradient as `_gradient`, with -p * (log p + H) for the entropy H. [N, V]"""
    logs_NV = logits_NV / temperature - normalizer_N[:, None]
    factor_NV = torch.addcmul(factor_N[:, None], logs_NV + entropy_N[:, None], entropy_grad_N[:, None])
    return (logs_NV.exp_() * factor_NV).div_(-temperature).to(dtype)


@dataclass(slots=True)
class _Passes:
    """The passes over a chunk's logits. Compiled, each reads them once or twice and writes next to nothing else."""

    statistics: Callable[..., Tensor]
    gradient: Callable[..., Tensor]
    gradient_with_entropy: Callable[..., Tensor]


PLAIN = HeadTransform()
EAGER = _Passes(_statistics, _gradient, _gradient_with_entropy)


def transformed(products_NV: Tensor, transform: HeadTransform) -> Tensor:
    """The model's logits, of the products of hidden states with the head's weights."""
    if transform.scale != 1.0:
        products_NV = products_NV * transform.scale
    if transform.softcap:
        products_NV = (products_NV / transform.softcap).tanh() * transform.softcap
    return products_NV


def _through_transform(grad_NV: Tensor, logits_NV: Tensor, transform: HeadTransform) -> Tensor:
    """The gradient of the products, of that of the logits."""
    if transform.softcap:
        slope_NV = 1.0 - (logits_NV / transform.softcap).square()
        grad_NV = grad_NV * slope_NV.to(grad_NV.dtype)
    return grad_NV * transform.scale if transform.scale != 1.0 else grad_NV


@cache
def compiled_passes() -> _Passes:
    """One for the process: chunks of any size but one token share what is compiled for the first."""
    return _Passes(*(_compiled(one) for one in (_statistics, _gradient, _gradient_with_entropy)))


def _compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    compiled = torch.compile(function)

    def call(logits_NV: Tensor, *given: object) -> Tensor:
        of_any_length(len(logits_NV), logits_NV, *given)
        return compiled(logits_NV, *given)

    return call


class ChunkedLogProb(torch.autograd.Function):
    """Log-probabilities and entropies from hidden states, a chunk of tokens at a time.

    Logits are float32 whatever the inputs are, and divided by the temperature there: rounded to bfloat16 they would
    move a log-probability by as much as training does between two versions.

    The backward pass computes a chunk's logits again, unless there was one chunk only: then they were kept.
    Besides the inputs at most about four chunks times the vocabulary are in memory, in float32; with compiled passes
    two.
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
        passes: _Passes = EAGER,
        transform: HeadTransform = PLAIN,
    ) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities [N] and entropies [N], float32; entropies carry a gradient if asked to."""
        count = hidden_ND.shape[0]
        logprobs_N = hidden_ND.new_empty(count, dtype=torch.float32)
        entropy_N, normalizer_N = torch.empty_like(logprobs_N), torch.empty_like(logprobs_N)
        kept_NV = None
        for part in even_slices(count, chunk):
            logits_NV = transformed(matmul_float32(hidden_ND[part], weight_VD.t()), transform)
            column_N1, here_N = shard.locate(labels_N[part])
            own_N, exps_N, products_N, target_N = passes.statistics(logits_NV, column_N1, temperature)
            highest_N = own_N.clone()
            shard.reduce(highest_N, dist.ReduceOp.MAX)
            target_N = torch.where(here_N, target_N, 0.0)
            sums_3N = torch.stack([exps_N, products_N, target_N])
            sums_3N[:2] *= (own_N - highest_N).exp()
            shard.reduce(sums_3N)
            normalizer_N[part] = highest_N + sums_3N[0].log()
            logprobs_N[part] = sums_3N[2] - normalizer_N[part]
            entropy_N[part] = normalizer_N[part] - sums_3N[1] / sums_3N[0]
            if count <= chunk:
                kept_NV = logits_NV
        of_entropy_N = entropy_N if entropy_gradient else None
        saved = (hidden_ND, weight_VD, labels_N, logprobs_N, normalizer_N, kept_NV, of_entropy_N)
        ctx.save_for_backward(*saved)  # type: ignore[arg-type]
        ctx.settings = (chunk, shard, temperature, passes, transform)  # type: ignore[attr-defined]
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logprobs_N, entropy_N

    @staticmethod
    def backward(
        ctx: FunctionCtx, grad_N: Tensor, entropy_grad_N: Tensor
    ) -> tuple[Tensor, Tensor | None, None, None, None, None, None, None, None]:
        """With p = softmax(z): d log p_label / dz = onehot - p, and d H / dz = -p (log p + H)."""
        hidden_ND, weight_VD, labels_N, logprobs_N, normalizer_N, kept_NV, entropy_N = ctx.saved_tensors  # type: ignore[attr-defined]
        chunk, shard, temperature, passes, transform = ctx.settings  # type: ignore[attr-defined]
        grad_hidden_ND = torch.zeros_like(hidden_ND)
        trained = ctx.needs_input_grad[1]  # type: ignore[attr-defined]
        grad_weight_VD = torch.zeros_like(weight_VD, dtype=torch.float32) if trained else None
        for part in even_slices(hidden_ND.shape[0], chunk):
            logits_NV = kept_NV
            if logits_NV is None:
                logits_NV = transformed(matmul_float32(hidden_ND[part], weight_VD.t()), transform)
            factor_N = grad_N[part].clone()  # not views: a compiled pass would be compiled for each place in the whole
            given = (logits_NV, normalizer_N[part].clone(), factor_N, temperature, hidden_ND.dtype)
            if entropy_N is None:
                grad_NV = passes.gradient(*given)
            else:
                grad_NV = passes.gradient_with_entropy(*given, entropy_N[part].clone(), entropy_grad_N[part].clone())
                factor_N = torch.addcmul(factor_N, logprobs_N[part] + entropy_N[part], entropy_grad_N[part])
            column_N1, here_N = shard.locate(labels_N[part])
            at_label_N = (grad_N[part] - logprobs_N[part].exp() * factor_N) / temperature
            others_N = grad_NV.gather(1, column_N1)[:, 0]
            grad_NV.scatter_(1, column_N1, torch.where(here_N, at_label_N.to(grad_NV.dtype), others_N)[:, None])
            grad_NV = _through_transform(grad_NV, logits_NV, transform)
            grad_hidden_ND[part] = grad_NV @ weight_VD
            if grad_weight_VD is not None:
                add_matmul_float32(grad_weight_VD, grad_NV.t(), hidden_ND[part])
        shard.reduce(grad_hidden_ND)  # every rank has all hidden states, and a part of their gradient
        of_weight_VD = None if grad_weight_VD is None else grad_weight_VD.to(weight_VD.dtype)
        return grad_hidden_ND, of_weight_VD, None, None, None, None, None, None, None


@dataclass(slots=True, kw_only=True)
class Scoring:
    """How a head scores. `compiled`: its passes over the logits. transform: of a family whose logits are not the plain
    products.
    """

    chunk: int = 1024
    temperature: float = 1.0
    entropy_gradient: bool = False
    compiled: bool = False
    transform: HeadTransform = HeadTransform()

    def score(self, hidden_ND: Tensor, weight_VD: Tensor, labels_N: Tensor) -> Tensor:
        """Scores the labels: log-probabilities and entropies, [2, N]. weight_VD: whole, or sharded by vocabulary."""
        group = None
        if isinstance(weight_VD, DTensor):
            group = weight_VD.device_mesh.get_group("tp")
            weight_VD = weight_VD.to_local()
        shard = _Shard(group, weight_VD.shape[0])
        passes = compiled_passes() if self.compiled else EAGER
        settings = (self.chunk, shard, self.temperature, self.entropy_gradient, passes, self.transform)
        return torch.stack(ChunkedLogProb.apply(hidden_ND, weight_VD, labels_N, *settings))  # type: ignore[no-untyped-call]


def scoring_of(setup: TrainerSetup, transform: HeadTransform) -> Scoring:
    return Scoring(
        chunk=setup.trainer.logprob_chunk,
        temperature=setup.temperature,
        entropy_gradient=setup.loss.needs_entropy,
        compiled=setup.trainer.compile,
        transform=transform,
    )


class LogProbHead(Linear):  # type: ignore[misc]  # torchtitan has no types
    """Takes the place of lm_head. Set `targets` before the model is called."""

    @dataclass(kw_only=True, slots=True)
    class Config(Linear.Config):  # type: ignore[misc]
        scoring: Scoring

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.scoring = config.scoring
        self.targets: tuple[Tensor, Tensor] | None = None
        self.hidden: Tensor | None = None

    def forward(self, hidden_BLD: Tensor) -> Tensor:
        """Log-probabilities and entropies, stacked: [2, N]; logits [B, L, V] while no targets are set.

        targets: entries [N] of the flattened [B * L], and for each the token [N] to score there. Their hidden states
        [N, D] are in `hidden` until the next call.
        """
        if self.targets is None:
            return super().forward(hidden_BLD)  # type: ignore[no-any-return]
        if isinstance(hidden_BLD, DTensor):
            assert all(placement.is_replicate() for placement in hidden_BLD.placements), hidden_BLD.placements
            replicated = [Replicate()] * hidden_BLD.device_mesh.ndim
            hidden_BLD = hidden_BLD.to_local(grad_placements=replicated)
        entries_N, labels_N = self.targets
        hidden_ND = hidden_BLD.flatten(0, 1).index_select(0, entries_N)
        self.hidden = hidden_ND.detach()
        return self.scoring.score(hidden_ND, self.weight, labels_N)
