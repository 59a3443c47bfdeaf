"""200,000 characters, of kinds that are slow to parse or too deep."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, first

WHAT = "200,000 characters: words, digits, brackets, white space"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS = 4
SIZE = 200_000
KINDS = {
    "words": "word ",
    "digits": "9",
    "brackets": "(",
    "json": '{"a":[',
    "spaces": " ",
    "commas": "1,",
    "marks": "\\boxed{",
    "tags": "<answer>",
    "letters": "a",
}


def variants(attempt: Attempt) -> Iterator[Script]:
    for name, unit in KINDS.items():
        yield name, first(unit * (SIZE // len(unit)), "")
