"""What a probe knows of the task that it attacks, and how it says things."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat

from agentgym.evals.audit.oracle import Solution
from agentgym.evals.audit.stage import Says
from agentgym.types import Json, Message, Task

Script = tuple[str, Says]
"""The name of a variant, and what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A task under attack. right: its solution. others: solutions of other tasks, which say something else, one of
    each text. usual: the text that is right most often. has_tools: whether the environment gives its agents tools."""

    task: Task
    right: Solution
    others: Sequence[Solution]
    usual: str
    has_tools: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One way to be rewarded without a right answer."""

    what: str
    """One line for the report."""
    variants: Callable[[Attempt], Iterator[Script]]
    """Yields nothing where the probe says nothing that means anything in this task."""
    figure_only: frozenset[str] = frozenset()
    """Variants that may be rewarded, since what they say can be right."""
    controls: Mapping[str, str] = field(default_factory=dict)
    """Of a variant, another one that only leaves out what the first changes: in tasks where that is rewarded, too, the
    change was not to the answer, and the variant says nothing."""
    max_tasks: int | None = None
    """The number of tasks that it is tried in; None is all."""


def assistant(text: str, calls: Sequence[Mapping[str, Json]] = ()) -> Message:
    message: Message = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"type": "function", "id": f"call_{n}", "function": one} for n, one in enumerate(calls)
        ]
    return message


def always(text: str) -> Says:
    """Say it in every turn."""
    return lambda watched: repeat(assistant(text))


def first(text: str, then: str) -> Says:
    """Say one thing, then another in every turn after it."""
    return lambda watched: chain([assistant(text)], repeat(assistant(then)))


def replayed(solution: Solution) -> Says:
    """Say what the solution said, its calls included, and at the end its last words again and again."""
    return lambda watched: chain(solution.said, repeat(assistant(solution.text)))


def texts(by_name: Mapping[str, str]) -> Callable[[Attempt], Iterator[Script]]:
    """Variants that say one text each, whatever the task."""
    return lambda attempt: ((name, always(text)) for name, text in by_name.items())
