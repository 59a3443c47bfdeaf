"""The gradient of a loss over logits, for tensors that a custom training loop has made itself.

Axes: B rows, L tokens of a row, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import UserError
from agentgym.trainer.accumulation import Accumulation
from agentgym.trainer.build import TrainedModel
from agentgym.trainer.config import TrainerConfig
from agentgym.trainer.parallel import Ranks

Batch = Sequence[Mapping[str, Tensor]]
"""Tensors by name, for each data-parallel rank."""
OwnLoss = Callable[..., Any]
"""`loss(logits, **targets)`: one number, or a pair of it and metrics. logits: [B, L, V]."""


def add_gradient(
    built: TrainedModel,
    ranks: Ranks,
    accumulation: Accumulation,
    trainer: TrainerConfig,
    inputs: Batch,
    targets: Batch,
    loss: OwnLoss,
) -> dict[str, float]:
    """Add the gradient of the mean of all ranks' losses. Returns train/loss, and the loss's own metrics of this rank.

    inputs: `tokens`, [B, L] of int64, for each rank. Each row is one sequence, padding included, as the model sees it.
    Raises UserError for tensors and losses of another form.
    """
    _check(inputs, targets, built, ranks, trainer)
    tokens_BL = inputs[ranks.data_rank]["tokens"].to(ranks.device)
    given = {name: tensor.to(ranks.device) for name, tensor in targets[ranks.data_rank].items()}
    positions_BL = torch.arange(tokens_BL.shape[1], device=ranks.device).expand(tokens_BL.shape)
    model: Any = built.model
    for _ in accumulation.over([tokens_BL]):
        model.lm_head.targets = None  # so it gives logits
        mask = built.masks(positions_BL)
        found = loss(model(tokens_BL, positions=positions_BL, attention_masks=mask), **given)
        value, metrics = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            shape = [*value.shape] if isinstance(value, Tensor) else type(value).__name__
            raise UserError(
                f"the loss returned {shape}; it must be one number that has a gradient, or that and metrics"
            )
        numbers = _numbers(metrics)
        (value / ranks.data_size).backward()  # type: ignore[no-untyped-call]
    mean = ranks.reduce(value.detach().float().reshape(()) / ranks.data_size)
    return {"train/loss": float(mean)} | numbers


def _numbers(metrics: Any) -> dict[str, float]:
    try:
        return {f"loss/{name}": float(one) for name, one in (metrics or {}).items()}
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the loss's metrics must be a dictionary of numbers: {error}") from None


def _check(inputs: Batch, targets: Batch, built: TrainedModel, ranks: Ranks, trainer: TrainerConfig) -> None:
    """What all ranks have, on each of them: one that alone refused its part would leave the others waiting."""
    if trainer.tensor_parallel > 1 or trainer.context_parallel > 1:
        raise UserError(
            "a loss over logits needs whole rows and the whole vocabulary on each rank: set trainer.tensor_parallel "
            "and trainer.context_parallel to 1, or give groups"
        )
    for what, parts in (("inputs", inputs), ("targets", targets)):
        if not isinstance(parts, list | tuple) or len(parts) != ranks.data_size:
            given = len(parts) if isinstance(parts, list | tuple) else f"a {type(parts).__name__}"
            raise UserError(
                f"train_step got {given} as {what}, and the trainer has {ranks.data_size} rank(s): give a list with a "
                "dictionary of tensors for each (the replay buffer's dp_size)"
            )
        for part in parts:
            if not isinstance(part, Mapping) or not all(isinstance(one, Tensor) for one in part.values()):
                raise UserError(f"{what} of a rank is {part!r:.80}; give a dictionary of tensors by name")
    vocab_size = built.vocab_size
    for part in inputs:
        tokens = part.get("tokens", torch.zeros(()))
        if tokens.ndim != 2 or not tokens.numel() or not 1 < tokens.shape[1] <= trainer.seq_len:
            raise UserError(
                f"inputs['tokens'] is {[*tokens.shape]}; give token ids as [rows, tokens of a row], of at most "
                f"trainer.seq_len = {trainer.seq_len} tokens"
            )
        if tokens.is_floating_point() or not 0 <= int(tokens.min()) <= int(tokens.max()) < vocab_size:
            raise UserError(
                f"inputs['tokens'] has {tokens.dtype} from {tokens.min()} to {tokens.max()}; token ids are integers "
                f"from 0 to {vocab_size - 1}: pad with one of them"
            )
