"""Calls that are JSON objects with a name and arguments."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection, Mapping
from typing import NoReturn

from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

MAX_FAULT = 80  # characters that a fault quotes
MAX_DEPTH = 64  # of values in values: what else reads a call must not run out of stack
TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    if math.isfinite(number := float(text)):
        return number
    raise ValueError(f"{text[:40]} is too large a number")


_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite)


class Unreadable(Exception):
    """The fault, in one line."""


def read_json(text: str, at: int = 0) -> tuple[Json, int]:
    """The JSON value that begins at a character, and where it ends. Raises Unreadable."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise Unreadable(f"{error.msg} at character {error.pos - at}") from None
    except ValueError as error:  # NaN, or a number of too many digits
        raise Unreadable(str(error).partition(";")[0]) from None
    except RecursionError:
        raise Unreadable(TOO_DEEP) from None
    if text.count("[", at, end) + text.count("{", at, end) > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise Unreadable(TOO_DEEP)
    return value, end


def _depth(value: Json) -> int:
    depth, layer = 0, [value]
    while layer := [part for outer in layer for part in _parts(outer)]:
        depth += 1
    return depth


def _parts(value: Json) -> Collection[Json]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def call_of(value: Json, text: str, key: str) -> ToolCall | MalformedCall:
    """The call that an object stands for. key: of its arguments. text: as it was sampled."""
    if isinstance(value, dict):  # as JSON's decoder makes them
        name, arguments, call_id = value.get("name"), value.get(key, {}), value.get("id", "")
        known = key in value or not value.keys() - {"name", "id", "type"}  # else its arguments have another name
        if isinstance(name, str) and name and isinstance(arguments, dict) and known:
            named = {sys.intern(key): part for key, part in arguments.items()}  # one text for all calls of a tool
            return ToolCall(sys.intern(name), named, call_id if isinstance(call_id, str) else "")
    return malformed(text, key, f"this is not one: {text.strip()[:MAX_FAULT]}")


def malformed(text: str, key: str, why: str) -> MalformedCall:
    return MalformedCall(text, f'a tool call is {{"name": …, "{key}": {{…}}}}; {" ".join(why.split())}')


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
