"""Texts among a call's arguments as what the tool's JSON schema asks for: some formats of calls have no quotes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

MAX_DEPTH = 64  # of schemas in schemas
_ALL = frozenset({"null", "boolean", "integer", "fraction", "string", "array", "object"})
_WORDS = {"True": "true", "TRUE": "true", "False": "false", "FALSE": "false", "None": "null"}


class ArgumentTypes:
    """What the schema of all of a tool's arguments says of each, read once.

    Each reference in it is followed once: it may lead to itself, and two ways to one place.
    """

    def __init__(self, schema: Any) -> None:
        self._root = schema
        self._followed: set[str] = set()
        self._known: dict[str, frozenset[str]] = {}
        parts = list(self.properties(schema))
        every = {
            name: self.kinds({"allOf": [part[name] for part in parts if name in part]})
            for name in dict.fromkeys(name for part in parts for name in part)
        }
        self._kinds = {name: kinds for name, kinds in every.items() if "string" not in kinds}

    def typed(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """A text stays one where the schema takes texts, or where it is none of the kind."""
        given = dict(arguments)
        for name, kinds in self._kinds.items():
            if isinstance(value := given.get(name), str):
                given[name] = _read(value, kinds)
        return given

    def properties(self, schema: Any, depth: int = MAX_DEPTH) -> Iterator[Mapping[str, Any]]:
        """The parameters, wherever the schema has them."""
        if not isinstance(schema, Mapping) or not depth:
            return
        if isinstance(schema.get("properties"), Mapping):
            yield schema["properties"]
        reference = schema.get("$ref")
        if isinstance(reference, str) and reference not in self._followed:
            self._followed.add(reference)
            yield from self.properties(self._target(reference), depth - 1)
        for part in _list(schema.get("allOf")):
            yield from self.properties(part, depth - 1)

    def kinds(self, schema: Any, depth: int = MAX_DEPTH) -> frozenset[str]:
        """The JSON types that it takes, a number's in two; all where it does not say, or cannot be followed."""
        if not isinstance(schema, Mapping) or not depth:
            return _ALL
        kinds = _ALL
        if "type" in schema:
            named = {one for one in _list(schema["type"]) if isinstance(one, str)}
            kinds &= named | ({"integer", "fraction"} if "number" in named else set())
        if "enum" in schema:
            kinds &= set(map(_kind, _list(schema["enum"])))
        if "const" in schema:
            kinds &= {_kind(schema["const"])}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            if reference not in self._known:
                self._known[reference] = _ALL
                self._known[reference] = self.kinds(self._target(reference), depth - 1)
            kinds &= self._known[reference]
        for part in _list(schema.get("allOf")):
            kinds &= self.kinds(part, depth - 1)
        for several in ("anyOf", "oneOf"):
            if parts := _list(schema.get(several)):
                kinds &= frozenset().union(*(self.kinds(part, depth - 1) for part in parts))
        return kinds

    def _target(self, reference: str) -> Any:
        """What a `$ref` within the schema leads to; None of any other."""
        found = self._root if reference.startswith("#") else None
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, Mapping) else None
        return found


def _read(text: str, kinds: frozenset[str]) -> Any:
    try:
        value = json.loads(_WORDS.get(text.strip(), text), parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text
    return value if _kind(value) in kinds else text


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "fraction"
        case str():
            return "string"
        case list() | tuple():
            return "array"
    return "object"


def _list(value: Any) -> list[Any]:
    """A `type` may be one name."""
    return list(value) if isinstance(value, (list, tuple)) else [value] if isinstance(value, str) else []


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
