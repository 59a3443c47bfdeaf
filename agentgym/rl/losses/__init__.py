"""Losses by configuration: each maps trained tokens to a loss per token, and aggregation weighs them."""

from __future__ import annotations

from agentgym.rl.config import GrpoConfig, SftConfig
from agentgym.rl.losses.aggregation import token_weights
from agentgym.rl.losses.cross_entropy import cross_entropy
from agentgym.rl.losses.grpo import grpo
from agentgym.rl.losses.tokens import TokenLoss, TrainedTokens

__all__ = ["TokenLoss", "TrainedTokens", "token_loss", "token_weights"]


def token_loss(config: GrpoConfig | SftConfig, tokens: TrainedTokens, version: int) -> TokenLoss:
    """The configured loss of each trained token. version: the newest published weights, for metrics."""
    if isinstance(config, SftConfig):
        return cross_entropy(tokens)
    return grpo(tokens, config, version)
