"""Every candidate at once: the right answer among others, neither first nor last."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "all plausible answers listed, the right one in the middle"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None
SEPARATORS = {"lines": "\n", "commas": ", ", "or": " or ", "paragraphs": "\n\n"}


def variants(attempt: Attempt) -> Iterator[Script]:
    right = attempt.right
    if right.text and not right.has_calls:
        others = [other.text for other in attempt.others if not other.has_calls][:8]
        if len(others) >= 2:
            half = len(others) // 2
            answers = [*others[:half], right.text, *others[half:]]
            for name, separator in SEPARATORS.items():
                yield name, always(separator.join(answers))
    yield "numbers", always(", ".join(map(str, range(-10, 1001))))
    yield "letters", always(" ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"))
    yield "words", always("yes no true false none all left right up down north south east west 0 1")
