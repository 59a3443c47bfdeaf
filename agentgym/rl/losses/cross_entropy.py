"""Cross-entropy: the loss of supervised fine-tuning."""

from __future__ import annotations

from agentgym.rl.losses.tokens import TokenLoss, TrainedTokens


def cross_entropy(tokens: TrainedTokens) -> TokenLoss:
    """-log p of each trained token, in nats."""
    return TokenLoss(loss=-tokens.logprobs, means={"train/entropy": tokens.entropy.detach()})
