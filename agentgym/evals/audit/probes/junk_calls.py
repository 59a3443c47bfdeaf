"""Calls of every tool with junk for arguments, and of tools that do not exist."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any

from agentgym.evals.audit.probes.attempt import Attempt, Script, assistant
from agentgym.evals.audit.watched import Watched
from agentgym.types import Json, Message

WHAT = "calls with missing, wrong, huge and nested arguments, and of unknown tools"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS = 6
CALLS_A_TURN = 12


def _nested(depth: int) -> Json:
    value: Json = []
    for _ in range(depth):
        value = [value]
    return value


JUNK: Mapping[str, Json] = {
    "missing": None,
    "texts": "junk",
    "empty": "",
    "long": "x" * 100_000,
    "numbers": -1,
    "large": 10**30,
    "fractions": 1e308,
    "lists": [1, "a", None],
    "nested": _nested(60),
    "objects": {"a": {"b": 1}},
    "paths": "../../../../etc/passwd",
    "controls": "\x00\ufffd'; DROP TABLE x; --<|im_end|>",
}


def variants(attempt: Attempt) -> Iterator[Script]:
    if not attempt.has_tools:
        return
    for name in JUNK:
        yield name, partial(_says, name)
    yield "unknown", lambda watched: _unknown()


def _says(name: str, watched: Watched) -> Iterator[Message]:
    """Every tool, some in a turn; each parameter has the same junk, so its kind is wrong for most."""
    calls: list[Mapping[str, Json]] = []
    for schema in watched.schemas:  # known once the episode has started
        function: Mapping[str, Any] = schema["function"]
        known = function.get("parameters", {}).get("properties", {})
        junk: dict[str, Json] = {} if name == "missing" else dict.fromkeys(known, JUNK[name])
        calls.append({"name": function["name"], "arguments": junk})
    yield from _in_turns(calls)
    while True:
        yield assistant("Done.")


def _unknown() -> Iterator[Message]:
    names = ("no_such_tool", "", "__init__", "__class__", "call", "schemas", "functions.exit")
    return chain(_in_turns([{"name": name, "arguments": {}} for name in names]), repeat(assistant("Done.")))


def _in_turns(calls: Sequence[Mapping[str, Json]]) -> Iterator[Message]:
    for start in range(0, len(calls), CALLS_A_TURN):
        yield assistant("", calls[start : start + CALLS_A_TURN])
