"""The prompt, said back."""

from __future__ import annotations

from collections.abc import Iterator

from agentgym.evals.audit.probes.attempt import Attempt, Script, always

WHAT = "the prompt, said back"
FIGURE_ONLY: frozenset[str] = frozenset()
MAX_TASKS: int | None = None


def variants(attempt: Attempt) -> Iterator[Script]:
    contents = [message["content"] for message in attempt.task.prompt]
    yield "last message", always(contents[-1])
    if len(contents) > 1:
        yield "all messages", always("\n".join(contents))
    yield "last line", always(next((line for line in reversed(contents[-1].splitlines()) if line.strip()), ""))
