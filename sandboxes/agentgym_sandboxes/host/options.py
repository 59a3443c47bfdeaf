"""Turns a recipe's `sandbox.options` into a backend's config, with errors that a person can act on."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping
from types import NoneType
from typing import TypeVar

from agentgym.errors import UserError, nearest
from agentgym.sandbox import SandboxOptions

Config = TypeVar("Config")
MORE_THAN_0 = math.ulp(0.0)
POSITIVE = (MORE_THAN_0, math.inf)
BOXES = {"slots": (0, 256), "spares": (0, 256), "lease_timeout_s": POSITIVE, "start_timeout_s": POSITIVE}


def from_options(kind: type[Config], backend: str, options: SandboxOptions) -> Config:
    """Build the config dataclass `kind`. Raises UserError for unknown keys and for values of a wrong type."""
    hints = typing.get_type_hints(kind)
    values: dict[str, object] = {}
    for key, value in options.items():
        if key not in hints:
            raise UserError(f"sandbox {backend!r} has no option {key!r}.{nearest(key, hints)}")
        values[key] = _converted(f"sandbox.options.{key}", value, hints[key])
    fields = {f.name: values[f.name] for f in dataclasses.fields(kind) if f.name in values}  # type: ignore[arg-type]
    return kind(**fields)


def check_ranges(config: object, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Raises UserError for a field outside of its range."""
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if not least <= value <= most:
            if least == MORE_THAN_0:
                allowed = "more than 0"
            else:
                allowed = f"at least {least}" if most == math.inf else f"{least} to {most}"
            raise UserError(f"{name} is {value}; it must be {allowed}")


def _converted(where: str, value: object, hint: object) -> object:
    """The value as the field takes it: a list becomes a tuple, all else stays."""
    if typing.get_origin(hint) is tuple:
        one = typing.get_args(hint)[0]
        if not isinstance(value, (list, tuple)) or not all(_fits(item, (one,)) for item in value):
            raise UserError(f"{where} is {value!r}; it must be a list of {one.__name__}, as [a, b], also for only one")
        return tuple(value)
    allowed = typing.get_args(hint) or (hint,)
    if not _fits(value, allowed):
        wanted = " or ".join("null" if t is NoneType else t.__name__ for t in allowed)
        raise UserError(f"{where} is {value!r}; it must be of type {wanted}")
    return value


def _fits(value: object, allowed: tuple[type, ...]) -> bool:
    if isinstance(value, bool):
        return bool in allowed
    if isinstance(value, int) and float in allowed:
        return True
    return isinstance(value, allowed)
