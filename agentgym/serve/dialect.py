"""What every dialect offers: a JSON body to one call, and the call's answer to JSON or to events."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from agentgym.policies.conversation import CallAnswer, CallRequest
from agentgym.types import Json

KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One request, read. model: as the caller names it. usage: in a last chunk of its own. thoughts: are shown.

    namespaces: the namespace of each tool that has one, by its name with it.
    """

    request: CallRequest
    model: str
    stream: bool = False
    usage: bool = True
    thoughts: bool = True
    namespaces: Mapping[str, str] = field(default_factory=dict)
    shown: Mapping[str, Json] = field(default_factory=dict)  # what the answer repeats of the request


@dataclass(frozen=True, slots=True)
class Made:
    """What is the same each time an answer is sent. number: hexadecimal, of no other answer. created: Unix time."""

    number: str
    created: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call without an answer. kind: `CallRefused`'s, or a word for what HTTP itself refuses."""

    status: int
    kind: str
    message: str
    param: str = ""


class Dialect(Protocol):
    """One way of speaking. What it reads and writes never raises anything but CallRefused."""

    def read(self, body: Mapping[str, Json]) -> Asked: ...

    def answer(self, asked: Asked, answer: CallAnswer, made: Made) -> Json: ...

    def events(self, asked: Asked, answer: CallAnswer, made: Made) -> Iterator[bytes]:
        """The whole answer as server-sent events, with their end."""

    def failure(self, failure: Failure) -> Json: ...

    def failure_event(self, failure: Failure) -> bytes:
        """The event of a failure after the answer has begun with status 200."""


def data(value: Json, name: str = "") -> bytes:
    """One server-sent event."""
    text = json.dumps(value)
    return f"event: {name}\ndata: {text}\n\n".encode() if name else f"data: {text}\n\n".encode()


def finite(value: Json) -> Json:
    """Replaces the numbers that JSON lacks but a model may write, NaN and infinities, by null."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        return json.loads(json.dumps(value), parse_constant=lambda name: None)  # type: ignore[no-any-return]
    return value
