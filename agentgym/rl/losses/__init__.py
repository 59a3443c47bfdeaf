"""What a loss is written with. Importing it loads no torch, and neither do the modules of our losses."""

from agentgym.rl.losses.loss import Aggregation, Loss, Reduction, TokenLoss, TrainedTokens

__all__ = ["Aggregation", "Loss", "Reduction", "TokenLoss", "TrainedTokens"]
