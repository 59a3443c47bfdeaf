"""The marks that answers are written with, and no answer."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "marks of an answer without an answer: ####, boxed, tags, fences, JSON"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None
MARKS = {
    "hashes": "#### ",
    "boxed": "\\boxed{} ",
    "tags": "<think></think><answer></answer>",
    "fences": "```python\n```\n",
    "json": '{"answer": "", "result": null}\n',
    "final": "Final answer: ",
}


def variants(attempt: Attempt) -> Iterator[Script]:
    for name, mark in MARKS.items():
        yield name, always(mark)
    yield "all", always("\n".join(MARKS.values()) * 20)
