"""Checks of a finished recipe that involve more than one of its sections."""

from __future__ import annotations

from agentgym.errors import UserError
from agentgym.recipe import Recipe


def check_lengths(recipe: Recipe) -> None:
    """An episode must fit the generator's context and the trainer's rows."""
    longest = recipe.rollout.max_episode_tokens
    for name, limit in (
        ("generator.max_model_len", recipe.generator.max_model_len),
        ("trainer.seq_len", recipe.trainer.seq_len),
    ):
        if longest > limit:
            raise UserError(
                f"rollout.max_episode_tokens is {longest} but {name} is only {limit}: "
                "an episode would not fit; lower the first or raise the second"
            )


def check_sampling(recipe: Recipe) -> None:
    """The trainer computes the softmax at a temperature, not a truncated distribution."""
    rollout = recipe.rollout
    if rollout.top_p < 1 or rollout.top_k > 0:
        raise UserError(
            f"training with rollout.top_p = {rollout.top_p} and rollout.top_k = {rollout.top_k} would compare "
            "log-probabilities of two different distributions; train with top_p 1 and top_k 0, and "
            "truncate only in `agentgym eval`"
        )
