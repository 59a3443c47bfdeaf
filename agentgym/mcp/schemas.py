"""The schemas of a server's tools: as the policy is shown them, and the check of what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

from agentgym.errors import UserError
from agentgym.tools import Schema
from agentgym.types import Json

_MAX_FAULTS = 5  # that an agent is told of at once


def shown(tool: Any) -> Schema:
    function = {"name": tool.name, "description": tool.description or "", "parameters": _untitled(tool.input_schema)}
    return {"type": "function", "function": function}


def _untitled(schema: Any) -> Any:
    """Removes the titles that libraries derive from names; a parameter called `title` stays."""
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
    """What checks the arguments. Raises UserError for schemas that check nothing, of the results too."""
    named = f"the tool {tool.name!r} of the MCP server {server!r}"
    if tool.output_schema is not None:
        _validator(tool.output_schema, f"the outputSchema of {named}")
    return _validator(tool.input_schema, f"the inputSchema of {named}")


def _validator(schema: Any, named: str) -> Any:
    import jsonschema
    import referencing

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UserError(f"{named} is not a valid JSON schema: {error.message}") from error
    if dangling := _dangling_reference(schema):
        raise UserError(
            f"{named} has the reference {dangling!r}, which leads to nothing in the schema; other documents are not "
            "fetched: put what it needs under $defs"
        )
    return kind(schema, registry=referencing.Registry())


def _dangling_reference(schema: Any) -> str:
    """A reference that cannot be followed, used or not; "" where there is none."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing.exceptions import Unresolvable
    from referencing.jsonschema import DRAFT202012, specification_with

    dialect = schema.get("$schema", "") if isinstance(schema, Mapping) else ""
    root = specification_with(dialect, default=DRAFT202012).create_resource(schema)
    found = [(root, REGISTRY.resolver_with_root(root))]
    while found:
        resource, resolver = found.pop()
        for key in ("$ref", "$dynamicRef") if isinstance(resource.contents, Mapping) else ():
            reference = resource.contents.get(key)
            try:
                if isinstance(reference, str):
                    resolver.lookup(reference)
            except Unresolvable:
                return str(reference)
        found += [(part, resolver.in_subresource(part)) for part in resource.subresources()]
    return ""


def faults_of(check: Any, arguments: Mapping[str, Json]) -> str:
    """Says in one line what is wrong with the arguments; "" if nothing is, or if a schema refers to itself."""
    found = []
    with suppress(RecursionError):
        for error in islice(check.iter_errors(arguments), _MAX_FAULTS):
            place = ".".join(map(str, error.absolute_path))
            found.append(f"{place}: {error.message[:200]}" if place else error.message[:200])
    return " ".join("; ".join(found).split())
