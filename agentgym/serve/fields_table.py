"""The table of docs/endpoint.md: `python -m agentgym.serve.fields_table docs/endpoint.md` writes it there."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path

from agentgym.serve import anthropic_messages, chat_completions, gemini, responses
from agentgym.serve.fields import Fields
from agentgym.types import Json

OPENING, CLOSING = "<!-- fields -->", "<!-- /fields -->"
FIELDS: Mapping[str, Fields] = {
    "chat completions": chat_completions.FIELDS,
    "Responses": responses.FIELDS,
    "Messages": anthropic_messages.FIELDS,
    "Gemini": gemini.FIELDS,
}


def markdown() -> str:
    """A row for each treatment of fields, a column for each interface."""
    rows = {
        "honoured": [_listed(dict.fromkeys(one.honoured, ())) for one in FIELDS.values()],
        "the run's own, in an episode": [_listed(dict.fromkeys(one.sampling, ())) for one in FIELDS.values()],
        "a preference": [_listed(dict.fromkeys(one.preferred, ())) for one in FIELDS.values()],
        "ignored: changes no token": [_listed(dict.fromkeys(one.ignored, ())) for one in FIELDS.values()],
        "a tool that is dropped, and counted": [
            ", ".join(_code(kind) for kind in one.hosted) for one in FIELDS.values()
        ],
        "refused, except with the value in brackets": [_listed(one.only) for one in FIELDS.values()],
    }
    lines = [["", *FIELDS], ["---"] * (1 + len(FIELDS)), *([name, *cells] for name, cells in rows.items())]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def written(page: str) -> str:
    """The page with the table of today. Raises ValueError for one without the markers."""
    head, opening, rest = page.partition(OPENING)
    _, closing, tail = rest.partition(CLOSING)
    if not opening or not closing:
        raise ValueError(f"the page has no {OPENING} with {CLOSING} after it; add both where the table is to be")
    return f"{head}{OPENING}\n{markdown()}\n{CLOSING}{tail}"


def _listed(names: Mapping[str, Iterable[Json]]) -> str:
    """The fields by name, those of one object after it."""
    found: list[str] = []
    for parent, inner in groupby(sorted(names, key=lambda name: name.rpartition(".")[::2]), _parent):
        fields = ", ".join(_code(name.rpartition(".")[2]) + _values(names[name]) for name in inner)
        found.append(f"in {_code(parent)}: {fields}" if parent else fields)
    return "; ".join(found)


def _parent(name: str) -> str:
    return name.rpartition(".")[0]


def _code(text: str) -> str:
    return f"`{text}`"


def _values(allowed: Iterable[Json]) -> str:
    values = ", ".join(_code(json.dumps(one)) for one in allowed)
    return f" ({values})" if values else ""


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
