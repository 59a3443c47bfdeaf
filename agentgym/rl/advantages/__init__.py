"""How much better what an episode did was than what it could have been expected to do. Loads no torch."""

from agentgym.rl.advantages.advantage import Advantage, BatchAdvantages, StepBatch, TurnTokens, centred_rewards
from agentgym.rl.advantages.assign import assign_advantages
from agentgym.rl.advantages.batch import BatchStd, ReinforcePlusPlus
from agentgym.rl.advantages.distillation import Distillation
from agentgym.rl.advantages.episodes import MeanOnly, Opo, Rloo, StdNormalized
from agentgym.rl.advantages.estimation import GaeTokens, GaeTurns
from agentgym.rl.advantages.turns import PerTurn

__all__ = [
    "Advantage",
    "BatchAdvantages",
    "BatchStd",
    "Distillation",
    "GaeTokens",
    "GaeTurns",
    "MeanOnly",
    "Opo",
    "PerTurn",
    "ReinforcePlusPlus",
    "Rloo",
    "StdNormalized",
    "StepBatch",
    "TurnTokens",
    "assign_advantages",
    "centred_rewards",
]
