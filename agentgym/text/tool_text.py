"""Tools told in the system message, for templates that drop them: short, for a small policy reads it, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentgym.text.tool_formats.base import ToolFormat
from agentgym.tools import ToolCall
from agentgym.types import Json, Message

INSTRUCTION = "Tools:\n{tools}\nTo call one, write:\n{call}"
"""{tools}: a line for each. {call}: one call as the format writes it."""


def with_tools(messages: Sequence[Message], tools_text: str) -> list[Message]:
    """The conversation with the tools behind what its system message says."""
    if messages and messages[0]["role"] == "system":
        return [{**messages[0], "content": f"{messages[0]['content']}\n\n{tools_text}"}, *messages[1:]]
    return [{"role": "system", "content": tools_text}, *messages]


def tools_text(schemas: Sequence[Mapping[str, Json]], tool_format: ToolFormat, instruction: str = INSTRUCTION) -> str:
    """What the agent reads about its tools."""
    call = tool_format.write([ToolCall("NAME", {"ARGUMENT": "VALUE"})])
    lines = "\n".join(_line(schema["function"]) for schema in schemas)
    return instruction.replace("{tools}", lines).replace("{call}", call)


def _line(function: Json) -> str:
    """`name(argument: type, …): description`, and what is said about the arguments."""
    assert isinstance(function, Mapping)
    schema = function.get("parameters")
    schema = schema if isinstance(schema, Mapping) else {}
    properties = schema.get("properties")
    properties = properties if isinstance(properties, Mapping) else {}
    required = schema.get("required") or ()
    assert isinstance(required, Sequence)
    definitions = schema.get("$defs") or {}
    assert isinstance(definitions, Mapping)
    arguments, described = [], []
    for name, given in properties.items():
        given = given if isinstance(given, Mapping) else {}
        arguments.append(f"{name}{'' if name in required else '?'}: {_type(given, definitions)}")
        if text := given.get("description"):
            described.append(f"\n  {name}: {text}")
    return f"{function['name']}({', '.join(arguments)}): {function.get('description', '')}{''.join(described)}"


def _type(schema: Json, definitions: Mapping[str, Json], depth: int = 0) -> str:
    """The type in its shortest notation: `string`, `"a" | "b"`, `integer[]`, `{x: number}`."""
    if not isinstance(schema, Mapping) or depth > 4:
        return "any"
    match schema:
        case {"$ref": str(path)}:
            return _type(definitions.get(path.rpartition("/")[2]), definitions, depth + 1)
        case {"enum": [*values]}:
            return " | ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
        case {"const": value}:
            return f'"{value}"' if isinstance(value, str) else str(value)
        case {"anyOf": [*parts]} | {"oneOf": [*parts]}:
            return " | ".join(_type(part, definitions, depth + 1) for part in parts)
        case {"type": "array"}:
            return f"{_type(schema.get('items'), definitions, depth + 1)}[]"
        case {"type": "object", "properties": Mapping() as properties}:
            inner = (f"{name}: {_type(part, definitions, depth + 1)}" for name, part in properties.items())
            return f"{{{', '.join(inner)}}}"
        case {"type": str(name)}:
            return name
        case {"type": [*names]}:
            return " | ".join(map(str, names))
    return "any"
