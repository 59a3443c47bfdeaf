"""nan, infinity and numbers that overflow, in the forms in which answers are given."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "nan, infinity, numbers that overflow, division by zero"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None
VALUES = ("nan", "inf", "-inf", "1e999", "1/0", "1e-999", "9" * 400, "٣²", "0x10", "1_0", "None", "null")


def variants(attempt: Attempt) -> Iterator[Script]:
    for value in VALUES:
        yield value[:12], always(value)
    for value in VALUES[:5]:
        yield f"marked {value}", always(f"#### {value}\n\\boxed{{{value}}}\n<answer>{value}</answer>")
        yield f"JSON {value}", always(f'{{"answer": {"NaN" if value == "nan" else value}}}')
