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
    tokens_BL = _tokens_of(inputs, targets, ranks, trainer).to(ranks.device)
    given = {name: tensor.to(ranks.device) for name, tensor in targets[ranks.data_rank].items()}
    positions_BL = torch.arange(tokens_BL.shape[1], device=ranks.device).expand(tokens_BL.shape)
    model: Any = built.model
    for _ in accumulation.over([tokens_BL]):
        model.lm_head.targets = None  # so it gives logits
        mask = model.get_attention_masks(positions_BL) if built.flex else None
        found = loss(model(tokens_BL, positions=positions_BL, attention_masks=mask), **given)
        value, metrics = found if isinstance(found, tuple) else (found, {})
        if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
            shape = [*value.shape] if isinstance(value, Tensor) else type(value).__name__
            raise UserError(f"the loss returned {shape}; it must be one number that has a gradient")
        (value / ranks.data_size).backward()  # type: ignore[no-untyped-call]
    mean = ranks.reduce(value.detach().float().reshape(()) / ranks.data_size)
    return {"train/loss": float(mean)} | {f"loss/{name}": float(one) for name, one in metrics.items()}


def _tokens_of(inputs: Batch, targets: Batch, ranks: Ranks, trainer: TrainerConfig) -> Tensor:
    if trainer.tensor_parallel > 1 or trainer.context_parallel > 1:
        raise UserError(
            "a loss over logits needs whole rows and the whole vocabulary on each rank: set trainer.tensor_parallel "
            "and trainer.context_parallel to 1, or give groups"
        )
    if not len(inputs) == len(targets) == ranks.data_size:
        raise UserError(
            f"train_step got inputs for {len(inputs)} and targets for {len(targets)} ranks, and the trainer has "
            f"{ranks.data_size}: give each a dictionary (the replay buffer's dp_size)"
        )
    tokens = inputs[ranks.data_rank].get("tokens")
    if not isinstance(tokens, Tensor) or tokens.ndim != 2 or not 1 < tokens.shape[1] <= trainer.seq_len:
        shape = [*tokens.shape] if isinstance(tokens, Tensor) else type(tokens).__name__
        raise UserError(
            f"inputs['tokens'] is {shape}; give token ids as [rows, tokens of a row], of at most trainer.seq_len = "
            f"{trainer.seq_len} tokens"
        )
    return tokens
