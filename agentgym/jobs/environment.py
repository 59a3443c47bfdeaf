"""The environment that a recipe names."""

from __future__ import annotations

import inspect

from agentgym.env import Environment
from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.recipe import Recipe


def load_environment(recipe: Recipe, registry: PluginRegistry) -> Environment:
    """Raises UserError for an unknown name or option, and when the environment refuses its options."""
    factory = registry.environment(recipe.env.name)
    options = recipe.env.options
    known = inspect.signature(factory).parameters
    for name in options:
        if name not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise UserError(f"environment {recipe.env.name!r} has no option {name!r}.{nearest(name, known)}")
    try:
        return factory(**options)
    except (TypeError, ValueError) as error:
        raise UserError(f"environment {recipe.env.name!r} refused its options {options}: {error}") from error
