"""Builds the environment with that name or import path, with its options checked."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from agentgym.env import Environment
from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.tools import Toolbox
from agentgym.types import Json


def build_environment(registry: PluginRegistry, name: str, options: Mapping[str, Json]) -> Environment[Any]:
    """Raises UserError for an unknown name or option, when the environment refuses its options, and for unfit tools."""
    factory = registry.environment(name)
    known = inspect.signature(factory).parameters
    for option in options:
        if option not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise UserError(f"environment {name!r} has no option {option!r}.{nearest(option, known)}")
    try:
        environment = factory(**options)
    except UserError:
        raise
    except (TypeError, ValueError) as error:
        raise UserError(f"environment {name!r} refused its options {dict(options)}: {error}") from error
    if environment.tools is not None:
        Toolbox.of(environment.tools)  # a method that cannot be a tool is found before a run begins
    return environment
