"""How many tokens a model can attend to, and what a recipe asks of it: compared before anything is loaded. No torch."""

from __future__ import annotations

from pathlib import Path

from agentgym.errors import UserError
from agentgym.families.registry import read_config
from agentgym.models.resolve import local_folder
from agentgym.recipe import Recipe


def positions_of(folder: Path | None) -> int | None:
    """By the model's config.json; None where that is unknown."""
    if folder is None or not (folder / "config.json").is_file():
        return None
    found = read_config(folder).get("max_position_embeddings")
    return found if isinstance(found, int) else None


def check_positions(recipe: Recipe) -> int | None:
    """The positions of the recipe's model, if it is on this machine.

    Raises UserError for generators that would need more, with values that fit.
    """
    positions, length = positions_of(local_folder(recipe.model.path)), recipe.generator.max_model_len
    if positions is not None and length > positions:
        episode = min(positions, recipe.rollout.max_episode_tokens)
        raise UserError(
            f"generator.max_model_len is {length}, and the model has {positions} positions (max_position_embeddings of "
            f"its config.json); give --generator.max_model_len {positions} --rollout.max_episode_tokens {episode}"
        )
    return positions
