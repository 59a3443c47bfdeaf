"""The settings of supervised fine-tuning: what is imitated, for how long, and with what."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SftConfig:
    """What is imitated: files, saved episodes, the environment's own oracle, or several of them."""

    data: tuple[str, ...] = ()
    """JSONL files to imitate: a row is {"messages": [...]}, with "tools" where there are any."""
    episodes: tuple[str, ...] = ()
    """Folders of runs whose saved training episodes are imitated, those that earned at least `min_reward`."""
    min_reward: float = 1.0
    """The least reward of an episode that is imitated."""
    oracle_tasks: int = 0
    """How many tasks of the train split the environment solves itself, by its `solve`."""
    epochs: float = 3.0
    """Passes over all conversations; ignored where `steps` is set."""
    steps: int = 0
    """Optimizer steps; 0 takes as many as `epochs` need."""
    batch_size: int = 32
    """Conversations a step."""
    held_out_share: float = 0.05
    """The share of the conversations that are not trained; their loss is measured at each checkpoint."""
    max_skipped_share: float = 0.1
    """The largest share of unusable rows and of conversations that are too long or that no episode could have. They
    are left out and counted; with more of them the run ends with a report."""
    checkpoint_every: int = 100
    """Steps between checkpoints; 0 saves the first and the last alone."""
    checkpoint_in_background: bool = True
    """Write the checkpoints between the first and the last while the next steps go on."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints are kept; 0 keeps all."""
    seed: int = 0
    """Decides the order of the conversations, which are held out, and which tasks the oracle solves."""

    def __post_init__(self) -> None:
        if min(self.steps, self.oracle_tasks, self.checkpoint_every, self.keep_checkpoints) < 0 or self.batch_size < 1:
            raise ValueError(
                "sft.steps, oracle_tasks, checkpoint_every and keep_checkpoints can't be negative, and "
                f"sft.batch_size is at least 1; got {self.steps}, {self.oracle_tasks}, {self.checkpoint_every}, "
                f"{self.keep_checkpoints} and {self.batch_size}"
            )
        if not self.steps and not 0 < self.epochs < math.inf:
            raise ValueError(f"sft.epochs is {self.epochs:g}; give more than 0, or sft.steps")
        if math.isnan(self.min_reward):  # which no reward is below
            raise ValueError("sft.min_reward is nan; give a number")
        if not 0 <= self.held_out_share < 1 or not 0 <= self.max_skipped_share <= 1:
            raise ValueError(
                f"sft.held_out_share {self.held_out_share:g} and sft.max_skipped_share {self.max_skipped_share:g} are "
                "shares, from 0 to below 1 and from 0 to 1"
            )

    def num_steps(self, num_conversations: int) -> int:
        return self.steps or max(1, math.ceil(self.epochs * num_conversations / self.batch_size))
