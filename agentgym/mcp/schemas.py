"""The schemas of a server's tools: as the policy is shown them, and the check of what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentgym.errors import UserError
from agentgym.tools import Schema
from agentgym.types import Json

_MAX_FAULTS = 5  # that an agent is told of at once


def shown(tool: Any) -> Schema:
    function = {"name": tool.name, "description": tool.description or "", "parameters": _untitled(tool.input_schema)}
    return {"type": "function", "function": function}


def _untitled(schema: Any) -> Any:
    """Without the titles that libraries make of names; a parameter that is called `title` stays."""
    if isinstance(schema, list):
        return [_untitled(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    names = ("properties", "$defs", "definitions")
    return {
        key: {name: _untitled(part) for name, part in value.items()}
        if key in names and isinstance(value, dict)
        else _untitled(value)
        for key, value in kept.items()
    }


def check_of(tool: Any, server: str) -> Any:
    """What checks the arguments. References to other documents are not followed."""
    import jsonschema
    import referencing

    schema = tool.input_schema
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UserError(
            f"the tool {tool.name!r} of the MCP server {server!r} has no valid schema: {error.message}"
        ) from error
    return kind(schema, registry=referencing.Registry())


def faults_of(check: Any, arguments: Mapping[str, Json]) -> str:
    """In one line, what is wrong with the arguments; "" of right ones."""
    found = []
    for error in check.iter_errors(arguments):
        place = ".".join(map(str, error.absolute_path))
        found.append(f"{place}: {error.message[:200]}" if place else error.message[:200])
        if len(found) == _MAX_FAULTS:
            break
    return " ".join("; ".join(found).split())
