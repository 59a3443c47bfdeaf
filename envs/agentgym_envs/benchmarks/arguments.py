"""Checks a call's arguments against a JSON schema, with one line that says all that is wrong."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from agentgym.types import Json

MAX_INTEGER: Final = 10**40  # larger ones are slow to compute with, and no tool needs them


class Refused(ValueError):
    """The arguments do not fit; its text is for the agent."""


def take(parameters: Mapping[str, Any], given: Mapping[str, Json]) -> dict[str, Any]:
    """The arguments as the function takes them. Raises Refused, which names every fault.

    Not strict: the text "3" is taken for a number and 3.0 for an integer, since some formats of calls write all values
    as text. Names that the schema does not have are refused.
    """
    known = parameters.get("properties", {})
    taken, faults = {}, []
    for name, value in given.items():
        if name not in known:
            faults.append(f"{name}: there is no such argument")
            continue
        value = _read(known[name], value)
        faults.extend(_faults(name, known[name], value))
        taken[name] = value
    faults.extend(f"{name}: is missing" for name in parameters.get("required", ()) if name not in given)
    if faults:
        raise Refused("; ".join(faults))
    return taken


def _read(schema: Mapping[str, Any], value: Any) -> Any:
    """A value written as text, where the schema asks for none."""
    kind = schema.get("type")
    if isinstance(value, str) and kind in ("integer", "number", "boolean", "array", "object"):
        try:
            read = json.loads(value.lower() if kind == "boolean" else value)
        except (ValueError, RecursionError):
            return value
        value = read if _KINDS[kind](_whole(kind, read)) else value
    return _whole(kind, value)


def _whole(kind: Any, value: Any) -> Any:
    return int(value) if kind == "integer" and isinstance(value, float) and value.is_integer() else value


def _faults(where: str, schema: Mapping[str, Any], value: Any) -> Iterator[str]:
    kind = schema.get("type")
    if value is None and "default" in schema and schema["default"] in (None, "None"):
        return
    if isinstance(value, int) and abs(value) >= MAX_INTEGER:
        yield f"{where}: the number is too large"
    elif kind in _KINDS and not _KINDS[kind](value):
        yield f"{where}: {_shown(value)} is not {_NOUNS[str(kind)]}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{where}: {_shown(value)} is not one of {', '.join(map(str, schema['enum']))}"
    elif kind == "array" and isinstance(schema.get("items"), Mapping):
        for index, one in enumerate(value):
            yield from _faults(f"{where}[{index}]", schema["items"], one)
    elif kind == "object":
        yield from (f"{where}.{name}: is missing" for name in schema.get("required", ()) if name not in value)
        for name, inner in schema.get("properties", {}).items():
            if name in value:
                yield from _faults(f"{where}.{name}", inner, value[name])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_number(value: Any) -> bool:
    return not isinstance(value, bool) and (
        isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    )


_KINDS: Final[Mapping[Any, Callable[[Any], bool]]] = {
    "string": lambda value: isinstance(value, str),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, Sequence) and not isinstance(value, str),
    "object": lambda value: isinstance(value, Mapping),
}
_NOUNS: Final = {
    "string": "a text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}
