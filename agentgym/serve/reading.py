"""Reads the JSON of a request field by field; what is wrong is refused with the path of the field."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

from agentgym.policies.conversation import CallRefused
from agentgym.tools import Schema
from agentgym.types import Json, Message

MAX_STOPS = 16
MAX_VALUES = 500_000  # `[],` takes 20 times its bytes in memory; commas and brackets of texts count too
_MAX_SHOWN = 80


def refuse(message: str, param: str) -> NoReturn:
    """Raises CallRefused: the caller's mistake, in this parameter."""
    raise CallRefused("invalid", f"{param}: {message}" if param else message, param=param)


def read_json(body: bytes) -> dict[str, Json]:
    """The object that a request's body holds. Raises CallRefused."""
    if sum(map(body.count, (b"[", b"{", b","))) > MAX_VALUES:
        refuse(f"the body has more than {MAX_VALUES} values", "")
    try:
        found = json.loads(body, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        refuse(f"the body is not valid JSON: {str(error) or 'nested too deep'}", "")
    if not isinstance(found, dict):
        refuse(f"the body is {_kind(found)}; give an object", "")
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def as_object(value: Json, param: str) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        refuse(f"give an object, not {_kind(value)}", param)
    return value


def as_list(value: Json, param: str) -> Sequence[Json]:
    if not isinstance(value, list):
        refuse(f"give a list, not {_kind(value)}", param)
    return value


def as_text(value: Json, param: str) -> str:
    if not isinstance(value, str):
        refuse(f"give a string, not {_kind(value)}", param)
    return value


def as_flag(body: Mapping[str, Json], name: str) -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        refuse(f"give true or false, not {_kind(value)}", name)
    return bool(value)


def as_count(body: Mapping[str, Json], name: str) -> int | None:
    """A whole number of at least 1; None where it was left out."""
    value = body.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        refuse(f"give a whole number of at least 1, not {json.dumps(value)[:_MAX_SHOWN]}", name)
    return value


def objects(value: Json, param: str) -> Iterator[tuple[str, Mapping[str, Json]]]:
    """The objects of a list, each with its path."""
    for n, one in enumerate(as_list(value, param)):
        path = f"{param}[{n}]"
        yield path, as_object(one, path)


_RANGES = {"temperature": (0.0, 2.0), "top_p": (0.0, 1.0), "top_k": (-1.0, math.inf)}


def read_sampling(body: Mapping[str, Json], spelled: Mapping[str, str] = MappingProxyType({})) -> dict[str, float]:
    """temperature, top_p, top_k and seed, those that were given. spelled: the names of fields that are others."""
    found: dict[str, float] = {}
    for name, (low, high) in _RANGES.items():
        field = spelled.get(name, name)
        value = body.get(field)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            refuse(f"give a number from {low:g} to {high:g}, not {json.dumps(value)[:_MAX_SHOWN]}", field)
        if name == "top_k" and value != int(value):
            refuse("give a whole number", field)
        if name == "top_p" and value == 0:
            refuse("give more than 0", field)
        found[name] = max(value, 0) if name == "top_k" else value  # -1 is vLLM's word for no limit
    field = spelled.get("seed", "seed")
    seed = body.get(field)
    if seed is not None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            refuse(f"give a whole number, not {_kind(seed)}", field)
        found["seed"] = seed
    return found


def read_stops(value: Json, param: str) -> tuple[str, ...]:
    """A string or a list of them; the empty ones, at which nothing can end, are refused."""
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else as_list(value, param)
    if len(given) > MAX_STOPS:
        refuse(f"{len(given)} strings; at most {MAX_STOPS} are allowed", param)
    stops = tuple(as_text(one, param) for one in given)
    if "" in stops:
        refuse("an empty string ends nothing; leave it out", param)
    return stops


def read_text(value: Json, param: str, kinds: frozenset[str]) -> str:
    """A message's content: a string, nothing, or parts that are texts.

    kinds: the types of such parts; a refusal is one everywhere. Parts are joined by line ends.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return as_text(value, param)
    texts: list[str] = []
    for path, part in objects(value, param):
        kind = part.get("type")
        if kind == "refusal":
            texts.append(as_text(part.get("refusal"), f"{path}.refusal"))
        elif isinstance(kind, str) and kind in kinds:
            texts.append(as_text(part.get("text"), f"{path}.text"))
        else:
            refuse(
                f"the part's type is {json.dumps(kind)[:_MAX_SHOWN]}; this policy reads texts: {sorted(kinds)}", path
            )
    return "\n".join(texts)


def read_arguments(value: Json, param: str) -> Json:
    """A call's arguments as a mapping; the text itself where it is no JSON object."""
    text = as_text(value, param)
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return found if isinstance(found, dict) else text


def function_schema(name: Json, description: Json, parameters: Json, param: str) -> Schema:
    """A tool as a chat template takes it. The names stand in one order, whatever the caller's."""
    described: dict[str, Json] = {"name": as_text(name, f"{param}.name")}
    if not described["name"]:
        refuse("give a name", f"{param}.name")
    described["description"] = "" if description is None else as_text(description, f"{param}.description")
    empty: Json = {"type": "object", "properties": {}}
    described["parameters"] = empty if parameters is None else as_object(parameters, f"{param}.parameters")
    return {"type": "function", "function": described}


def named_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages; results have the name of the call that they answer, which many agents leave out."""
    names: dict[str, str] = {}
    named: list[Message] = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            made: Any = call
            names[made["id"]] = made["function"]["name"]
        if message["role"] == "tool" and "name" not in message:
            name = names.get(message["tool_call_id"])
            message = message if name is None else {**message, "name": name}
        named.append(message)
    return tuple(named)


def _kind(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    return {str: "a string", list: "a list", dict: "an object"}[type(value)]
