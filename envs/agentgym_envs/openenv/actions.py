"""What the policy says as an action of a server, by the schema of its actions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from agentgym.errors import UserError, nearest
from agentgym.tools import Schema
from agentgym.types import Json
from agentgym_envs.openenv.wire import Refused

Kind: TypeAlias = Literal["auto", "tools", "text", "value", "json", "act"]
_NUMBER: Final = re.compile(r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FIXED: Final = ("metadata",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionForm:
    """How an action is said.

    kind: `tools` calls those of the server, `text` is all of the turn in one field, `value` the last number or word of
    the turn that one field allows, `json` the last JSON object of the turn, `act` the arguments of one tool.
    """

    kind: Kind
    field: str = ""
    schema: Mapping[str, Any]

    @classmethod
    def of(cls, schema: Mapping[str, Any], kind: Kind = "auto", field: str = "") -> ActionForm:
        """schema: of the actions. Raises UserError for a form that the schema does not have."""
        if kind not in get_args(Kind):
            raise UserError(f"openenv: no action {kind!r}.{nearest(kind, get_args(Kind))}")
        fields = {name: one for name, one in schema.get("properties", {}).items() if name not in _FIXED}
        if field and field not in fields:
            raise UserError(f"openenv: the server's actions have no field {field!r}.{nearest(field, fields)}")
        needed = [name for name in schema.get("required", ()) if name in fields] or list(fields)
        one = field or (needed[0] if len(needed) == 1 else "")
        if kind == "auto":
            is_of_tools = fields.get("type", {}).get("const") == "call_tool" or schema.get("title") == "CallToolAction"
            simple = "text" if one and _is_text(fields[one]) else "value" if one and _is_value(fields[one]) else "act"
            kind = "tools" if is_of_tools else simple  # type: ignore[assignment]
        if kind in ("text", "value") and not one:
            raise UserError(f"openenv: the server's actions have several fields; give env.options.field, of {needed}")
        return cls(kind=kind, field=one, schema=schema)

    @property
    def hint(self) -> str:
        """What the policy is told of it."""
        if self.kind == "json":
            return f"Answer with a JSON object of this schema: {json.dumps(_without_metadata(self.schema))}"
        if self.kind != "value":
            return ""
        if names := _choices(self._of_field()):
            return f"Answer with one of: {', '.join(names)}."
        return f"Answer with a {'whole number' if self._of_field().get('type') == 'integer' else 'number'}."

    def tools(self) -> tuple[Schema, ...]:
        """The one tool of `act`."""
        about = str(self.schema.get("description") or "Act in the environment.").strip()
        function: dict[str, Json] = {
            "name": "act", "description": about, "parameters": _without_metadata(self.schema),
        }  # fmt: skip
        return ({"type": "function", "function": function},)

    def read(self, said: str, observation: Mapping[str, Any]) -> dict[str, Json]:
        """The action of a turn. observation: the last one, which may say what is legal. Raises Refused."""
        if self.kind == "text":
            return {self.field: said.strip()}
        if self.kind == "json":
            return _last_object(said)
        value = self._value(said)
        legal = observation.get("legal_actions")
        if isinstance(legal, list) and legal and value not in legal:
            raise Refused(f"{value} is not legal now; legal are {', '.join(map(str, legal[:50]))}")
        return {self.field: value}

    def _value(self, said: str) -> Json:
        one = self._of_field()
        if names := _choices(one):
            found = re.findall("|".join(rf"\b{re.escape(name)}\b" for name in names), said, re.IGNORECASE)
            if not found:
                raise Refused(f"it names none of: {', '.join(names)}")
            return names[next(name for name in names if name.casefold() == found[-1].casefold())]
        numbers = _NUMBER.findall(said)
        if not numbers:
            raise Refused("it has no number")
        return int(float(numbers[-1])) if one.get("type") == "integer" else float(numbers[-1])

    def _of_field(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.schema["properties"][self.field]
        reference = found.get("$ref") or next((one["$ref"] for one in found.get("allOf", ()) if "$ref" in one), "")
        return self.schema.get("$defs", {}).get(str(reference).rpartition("/")[2], found) if reference else found


def _is_text(one: Mapping[str, Any]) -> bool:
    return one.get("type") == "string" and "enum" not in one


def _is_value(one: Mapping[str, Any]) -> bool:
    return one.get("type") in ("integer", "number", "boolean") or "enum" in one or "$ref" in one or "allOf" in one


def _choices(one: Mapping[str, Any]) -> dict[str, Json]:
    """The allowed values by their names."""
    allowed: Sequence[Json] = one.get("enum") or ([True, False] if one.get("type") == "boolean" else [])
    return {str(value).lower() if isinstance(value, bool) else str(value): value for value in allowed}


def _without_metadata(schema: Mapping[str, Any]) -> dict[str, Json]:
    fields = {name: one for name, one in schema.get("properties", {}).items() if name not in _FIXED}
    return {**{key: value for key, value in schema.items() if key != "title"}, "properties": fields}


def _last_object(said: str) -> dict[str, Json]:
    """The last JSON object of a text that is in no other. Raises Refused."""
    found, at, decoder = None, said.find("{"), json.JSONDecoder()
    while at >= 0:
        try:
            value, end = decoder.raw_decode(said, at)
            found = value
        except (ValueError, RecursionError):
            end = at + 1
        at = said.find("{", end)
    if not isinstance(found, dict):
        raise Refused("it has no JSON object")
    return found
