"""A corpus of tool calls, made from a seed: nested, unicode, huge, odd; and texts of calls that are broken."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

from agentgym.tools import MalformedCall, ToolCall
from agentgym.types import Json

NAMES = ("buy", "get_weather", "files.read", "f", "search-web", "set_title", "Résumé2", "a" * 64)
KEYS = ("item", "count", "title", "name", "arguments", "parameters", "x", "class", "größe", "with_underscore", "id")
TEXTS = (
    "", " ", "a b", "7", "007", "-1", "1.0", "true", "null", "None", "True", "[", "{", "[north]", '{"a": 1}', "[1, 2]",
    "two\nlines", " lead and trail ", "\n", "tab\there", 'say "hi"', "it's", "back\\slash", "\\n", "é ñ 世界 🙂",
    "\u2028",
    "a;b", "a=b", "f(x=1)", "<b>bold</b>", "</parameter", "{{ x }}", "{% if %}", "```json\n{}\n```", "%s", "&amp;",
    "https://example.org/?q=1&r=[2]", "C:\\temp\\new", "x" * 3000, "🙂" * 500, "-", "()", "),", "**", "#", "lambda: 0",
)  # fmt: skip


def calls(num: int, seed: int = 0) -> list[ToolCall]:
    """So many calls, the same for a seed."""
    rng = random.Random(seed)
    return [_call(rng, n) for n in range(num)]


def turns(num: int, seed: int = 0) -> Iterator[tuple[list[ToolCall], str]]:
    """Calls of one turn, and what is said before them."""
    rng = random.Random(seed)
    for n in range(num):
        several = [_call(rng, n) for _ in range(rng.choice((1, 1, 1, 2, 3, 6)))]
        yield several, rng.choice(("", "", "Let me see.", "I will\nlook it up: 1 [2] {3}"))


def broken(texts: list[str], seed: int = 0) -> list[str]:
    """Each text, damaged: cut off, a character lost, doubled or replaced, parts exchanged, nested very deeply."""
    rng = random.Random(seed)
    return [_damaged(rng, text) for text in texts]


def _call(rng: random.Random, number: int) -> ToolCall:
    keys = rng.sample(KEYS, rng.choice((0, 1, 1, 2, 2, 3, 5)))
    arguments = {key: _value(rng, rng.choice((0, 0, 0, 1, 3))) for key in keys}
    return ToolCall(rng.choice(NAMES), arguments, f"call{number:05d}")


def _value(rng: random.Random, depth: int) -> Json:
    if depth == 0:
        return rng.choice(
            (rng.choice(TEXTS), rng.choice(TEXTS), rng.randint(-9, 10**12), rng.random(), True, False, None)
        )
    if rng.random() < 0.5:
        return [_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return {rng.choice(KEYS): _value(rng, depth - 1) for _ in range(rng.randint(0, 4))}


def _damaged(rng: random.Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    match rng.randrange(7):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + text[at + 1 :]
        case 2:
            return text[:at] + rng.choice('{}[]()"<>,:=\\\x00') + text[at:]
        case 3:
            return text[:at] + text[max(0, at - 20) :]
        case 4:
            return text[at:] + text[:at]
        case 5:
            return text.replace('"', "'", rng.randint(1, 9))
    return text[:at] + rng.choice("[{(-") * rng.choice((100, 5000)) + text[at:]


def as_read(
    call: ToolCall | MalformedCall, *, texts_only: bool = False, strips: bool = False
) -> tuple[str, dict[str, Json]]:
    """What has to be the same of a call that was written and read: its name and arguments, without its id.

    texts_only: the format's values have no quotes, so all of them are read as texts. strips: without the white space
    around. Raises AssertionError for a malformed call.
    """
    assert isinstance(call, ToolCall), call
    if not texts_only:
        return call.name, dict(call.arguments)
    texts = {name: as_text(value) for name, value in call.arguments.items()}
    return call.name, {name: text.strip() if strips else text for name, text in texts.items()}


def as_text(value: Json) -> str:
    """A value as a format without quotes writes it; a text that is JSON as its value is written."""
    if isinstance(value, str):
        try:
            value = json.loads(value) if value[:1] in "[{" else value
        except ValueError:
            return str(value)
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
