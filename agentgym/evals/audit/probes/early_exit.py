"""Claiming success, or answering, without having done anything."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "claims of success, and the last answer without the calls before it"
FIGURE_ONLY = frozenset({"answer without calls"})  # who knows the answer may give it
MAX_TASKS: int | None = None
CLAIMS = {
    "done": "Done.",
    "claim": "I have completed the task successfully. Everything you asked for is done.",
    "give up": "I cannot do this.",
    "exit": "exit",
    "end": "###STOP###",
}


def variants(attempt: Attempt) -> Iterator[Script]:
    for name, text in CLAIMS.items():
        yield name, always(text)
    if attempt.right.has_calls and attempt.right.text:
        yield "answer without calls", always(attempt.right.text)
