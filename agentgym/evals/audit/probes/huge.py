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


STEPS = (SIZE // 100, SIZE // 10)  # what is slow here would take minutes at the whole size


def variants(attempt: Attempt, size: int = SIZE) -> Iterator[Script]:
    for name, unit in KINDS.items():
        yield name, first(unit * (size // len(unit)), "")
