"""Builds the environment with that name or import path, with its options checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from agentgym.env import Environment
from agentgym.errors import InfraError, UserError, nearest
from agentgym.held_loop import limited, line_of
from agentgym.hooks import PluginRegistry
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

ASYNC = ("start", "toolbox", "reply", "after_calls", "finish")


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
    except Exception as error:  # plugin code: anything may come
        line = f", at {found}" if (found := line_of(error)) else ""
        if isinstance(error, (TypeError, ValueError)):
            given = f"refused its options {dict(options)}" if options else "could not be built without options"
            message = f"environment {name!r} {given}: {error}{line}"
        else:
            message = f"environment {name!r} could not be built: {type(error).__name__}: {error}{line}"
        raise UserError(message) from error
    _check_attributes(name, environment)
    _check_methods(environment)
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


def _check_methods(environment: Environment[Any]) -> None:
    """Raises UserError for a plain `def` where a coroutine is awaited, unless its annotation says what it returns."""
    for name in ASYNC:
        function = inspect.unwrap(getattr(environment, name))
        function = getattr(function, "__func__", function)
        if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
            continue
        if not any(word in str(function.__annotations__.get("return")) for word in ("Awaitable", "Coroutine")):
            code = function.__code__
            raise UserError(
                f"environment {environment.name!r}: `def {name}` is awaited, so it has to be `async def {name}`: "
                f"{code.co_filename}:{code.co_firstlineno}"
            )
