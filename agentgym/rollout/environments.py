"""Builds the environment with that name or import path, with its options checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.contracts import ContractError, check_made
from agentgym.env import Environment
from agentgym.errors import InfraError, UserError, nearest
from agentgym.held_loop import limited
from agentgym.hooks import PluginRegistry
from agentgym.import_path import is_import_path
from agentgym.plugin_errors import detail_of
from agentgym.tools import Toolbox
from agentgym.types import Json

ATTRIBUTES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: isinstance(value, str) and value != "", "a text"),
    "version": (lambda value: isinstance(value, int), "a whole number"),
    "rewards": (
        lambda value: isinstance(value, Mapping) and all(isinstance(weight, int | float) for weight in value.values()),
        "a mapping of names to weights, as {'exact': 1.0}; a method is a reward of its own name where @reward marks it",
    ),
    "max_turns": (lambda value: isinstance(value, int) and value >= 1, "a number from 1 on"),
    "splits": (
        lambda value: isinstance(value, tuple | list) and bool(value) and {*value} <= {"train", "test"},
        "a tuple of 'train' and 'test', or of one of them",
    ),
    "tools": (lambda value: value is None or isinstance(value, type), "the class of the state, or None"),
}
"""Of an environment: what it has to be, and in words."""


def build_environment(registry: PluginRegistry, name: str, options: Mapping[str, Json]) -> Environment[Any]:
    """Raises UserError for an unknown name or option, for an environment that can't be built, and for unfit methods."""
    factory = registry.environment(name)
    known = inspect.signature(factory).parameters
    for option in options:
        if option not in known and not any(p.kind is p.VAR_KEYWORD for p in known.values()):
            raise UserError(f"environment {name!r} has no option {option!r}.{nearest(option, known)}")
    try:
        with limited():
            environment = factory(**options)
    except (UserError, InfraError):
        raise
    except (Exception, SystemExit) as error:  # plugin code: anything may come
        said = detail_of(error, factory)
        if isinstance(error, (TypeError, ValueError)):
            given = f"refused its options {dict(options)}" if options else "could not be built without options"
            message = f"environment {name!r} {given}: {said}"
        else:
            message = f"environment {name!r} could not be built: {type(error).__name__}: {said}"
        raise UserError(message) from error
    try:
        check_made(environment, Environment, f"environment {name!r}")
    except ContractError as error:
        if is_import_path(name):
            raise
        origin = registry.provider("environments", name).origin
        raise ContractError(f"{error}. It is of the plugin {origin}") from error
    _check_attributes(name, environment)
    if environment.tools is not None:
        Toolbox.of(environment.tools)  # a method that cannot be a tool is found before a run begins
    return environment


def _check_attributes(name: str, environment: Environment[Any]) -> None:
    """Raises UserError for one of the wrong kind, as a method that is called `rewards`."""
    for attribute, (is_fit, expected) in ATTRIBUTES.items():
        value = getattr(environment, attribute)
        if not is_fit(value):
            shown = "a function" if callable(value) and not isinstance(value, type) else f"{value!r:.200}"
            raise UserError(f"environment {name!r}: `{attribute}` is {shown}; it has to be {expected}")
