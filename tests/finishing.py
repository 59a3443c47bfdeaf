"""A recipe as `agentgym train` would run it, from its files and fields, checked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agentgym.config import apply_overrides
from agentgym.recipe import Recipe
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files


def finished(recipes: Sequence[Path], fields: Sequence[str]) -> Recipe:
    mapping, where = read_recipe_files(recipes)
    return finish_recipe(apply_overrides(mapping, fields), where=where)[0]
