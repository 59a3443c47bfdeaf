"""What two tasks have in common: their content, and their structure without numbers and names."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from agentgym.env import Environment
from agentgym.types import Task

_QUOTED = re.compile(r"\"[^\"\n]*\"|'[^'\n]*'|`[^`\n]*`|“[^”\n]*”")
_NUMBER = re.compile(r"[-+]?\d[\d.,]*")
_NAME = re.compile(r"(?<=[a-z,;:] )[A-Z]\w*")  # a capital letter within a sentence


def text(task: Task) -> str:
    """The prompt's words, without a difference of case or white space."""
    return " ".join("\n".join(message["content"] for message in task.prompt).casefold().split())


def content(task: Task) -> str:
    """The same for tasks that ask the same and have the same answer."""
    return as_text([text(task), task.answer])


def as_text(value: object) -> str:
    """The same for equal values, also for those that are no JSON."""
    try:
        return json.dumps(value, sort_keys=True, default=lambda one: type(one).__name__)
    except (TypeError, ValueError):  # keys that are no texts, a value within itself
        return repr(value)


def pattern(task: Task) -> str:
    """The prompt with its numbers, quoted texts and names left out."""
    words = "\n".join(message["content"] for message in task.prompt)
    for found, mark in ((_QUOTED, "<text>"), (_NUMBER, "<number>"), (_NAME, "<name>")):
        words = found.sub(mark, words)
    return " ".join(words.split())


def own_structure(environment: Environment[Any]) -> Callable[[Task], object] | None:
    """The environment's method `structure`, if it has one: what its splits have apart, as text or JSON."""
    method = getattr(environment, "structure", None)
    return method if callable(method) else None
