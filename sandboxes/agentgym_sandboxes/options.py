"""Turns a recipe's `sandbox.options` into a backend's config, with errors that a person can act on."""

from __future__ import annotations

import dataclasses
import typing
from types import NoneType
from typing import TypeVar

from agentgym.errors import UserError, nearest
from agentgym.sandbox import SandboxOptions

Config = TypeVar("Config")


def from_options(kind: type[Config], backend: str, options: SandboxOptions) -> Config:
    """Build the config dataclass `kind`. Raises UserError for unknown keys and for values of a wrong type."""
    hints = typing.get_type_hints(kind)
    for key, value in options.items():
        if key not in hints:
            raise UserError(f"sandbox {backend!r} has no option {key!r}.{nearest(key, hints)}")
        allowed = typing.get_args(hints[key]) or (hints[key],)
        if not _fits(value, allowed):
            wanted = " or ".join("null" if t is NoneType else t.__name__ for t in allowed)
            raise UserError(f"sandbox.options.{key} is {value!r}; it must be of type {wanted}")
    fields = {f.name: options[f.name] for f in dataclasses.fields(kind) if f.name in options}  # type: ignore[arg-type]
    return kind(**fields)


def _fits(value: object, allowed: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, int) and float in allowed:
        return True
    return isinstance(value, allowed)
