"""Right answers with the way to them: what a model could be fine-tuned on, as messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from agentgym.types import Json, Message

_ANNOTATION: Final = re.compile(r"<<([^<>=]*)=([^<>]*)>>")  # GSM8K's own calls of a calculator
_LAST_LINE: Final = re.compile(r"\n?####.*\s*\Z")


def plain_text(solution: str) -> str:
    """A solution without its annotations and the line with the answer."""
    return _LAST_LINE.sub("", _ANNOTATION.sub("", solution)).strip()


def calculations(solution: str) -> list[str]:
    """What a solution's annotations say to compute, in order."""
    return [found[0].strip() for found in _ANNOTATION.findall(solution) if found[0].strip()]


def final_message(text: str, answer: str, *, boxed: bool) -> Message:
    """The text with the answer marked at its end, unless a box in it holds the answer already."""
    mark = f"\\boxed{{{answer}}}" if boxed else f"#### {answer}"
    content = text if boxed and mark in text else f"{text}\n{mark}".strip()
    return {"role": "assistant", "content": content}


def call_message(name: str, arguments: dict[str, Json], number: int) -> Message:
    """An assistant's turn that is one call."""
    call = {"type": "function", "id": f"call_{number}", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def with_calls(tool: str | None, expressions: list[str], last: Message) -> Iterator[Message]:
    """tool: calculator or python, which compute the expressions first; None computes nothing."""
    for number, expression in enumerate(expressions if tool else (), start=1):
        if tool == "calculator":
            yield call_message("calculate", {"expression": expression}, number)
        else:
            yield call_message("python", {"code": f"print({expression})"}, number)
    yield last
