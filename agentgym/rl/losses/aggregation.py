"""How the losses of single tokens become one number: a weight for every token, over the whole batch.

Because every aggregation is a weighted sum, parts of a batch (microbatches, ranks) just add up.
"""

from __future__ import annotations

import torch
from torch import Tensor

from agentgym.rl.losses.loss import Aggregation
from agentgym.rl.packing import TrainBatch


def token_weights(batch: TrainBatch, aggregation: Aggregation, horizon: int) -> Tensor:
    """Weights [R, L], 0 where a token is not trained.

    token_mean: 1 / N, N trained tokens in the batch (DAPO, arXiv:2503.14476).
    sequence_mean: 1 / (S * n), n trained tokens in the token's sequence, S sequences that have any
    (GRPO, arXiv:2402.03300).
    fixed_horizon: 1 / (S * horizon), so that no length is preferred (Dr. GRPO, arXiv:2503.20783).
    batch: all rows, because N and S are counted here.
    """
    mask = batch.loss_mask
    if aggregation == "token_mean":
        return mask.float() / max(1, batch.num_trained_tokens)
    index = batch.sample_index.clamp(min=0)
    counts_S = torch.zeros(batch.num_samples).index_add_(0, index[mask], torch.ones(int(mask.sum())))
    num_sequences = max(1, int((counts_S > 0).sum()))
    if aggregation == "sequence_mean":
        return torch.where(mask, 1.0 / (num_sequences * counts_S.clamp(min=1)[index]), 0.0)
    return mask.float() / (num_sequences * horizon)
