"""Losses by configuration: each maps trained tokens to a loss per token, and aggregation weighs them."""

from __future__ import annotations

from agentgym.train.config import GrpoConfig, SftConfig
from agentgym.train.losses.aggregation import token_weights
from agentgym.train.losses.cross_entropy import cross_entropy
from agentgym.train.losses.grpo import grpo
from agentgym.train.losses.tokens import TokenLoss, TrainedTokens

__all__ = ["TokenLoss", "TrainedTokens", "token_loss", "token_weights"]


def token_loss(config: GrpoConfig | SftConfig, tokens: TrainedTokens, version: int) -> TokenLoss:
    """The configured loss of each trained token. version: the newest published weights, for metrics."""
    if isinstance(config, SftConfig):
        return cross_entropy(tokens)
    return grpo(tokens, config, version)
