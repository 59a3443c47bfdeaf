"""What the environment itself says is right: its `solve`, or else the task's answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.env import Environment
from agentgym.types import Message, Task


@dataclass(slots=True)
class Solution:
    """What the oracle said in one task. is_oracle: False where it is only the task's answer, written down."""

    task: Task
    is_oracle: bool
    said: list[Message] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The last thing that it said in words."""
        return next((message["content"] for message in reversed(self.said) if message.get("content")), "")

    @property
    def last_word(self) -> str:
        return (self.text.split() or [""])[-1]

    @property
    def has_calls(self) -> bool:
        return any(message.get("tool_calls") for message in self.said)

    @property
    def key(self) -> str:
        """The same for solutions that say the same."""
        return json.dumps(self.said, sort_keys=True, default=repr)


def solving(environment: Environment[Any], solution: Solution) -> Iterator[Message]:
    """The oracle's messages, which are written down in the solution as they are said."""
    solved = environment.solve(solution.task)
    assert solved is not None
    oracle = iter(solved)
    solution.said.clear()
    try:
        message = next(oracle)
        while True:
            solution.said.append(message)
            answered = yield message
            message = oracle.send(answered) if hasattr(oracle, "send") else next(oracle)
    except StopIteration:
        return


def has_oracle(environment: Environment[Any], task: Task) -> bool:
    return environment.solve(task) is not None


def most_frequent(solutions: Sequence[Solution]) -> float:
    """The share of tasks with the most frequent right answer: the task's where it is a text, or what is said last.

    What is said after calls is no answer.
    """
    said = Counter(one.text for one in solutions if one.text and not one.has_calls)
    given = Counter(one.task.answer for one in solutions if isinstance(one.task.answer, str))
    return max([*said.values(), *given.values()], default=0) / len(solutions)


def written(task: Task) -> Solution:
    """The task's answer as a text, for an environment without an oracle; without words where it is neither text
    nor number."""
    answer = task.answer
    said: list[Message] = []
    if isinstance(answer, (str, int, float)) and not isinstance(answer, bool):
        said.append({"role": "assistant", "content": str(answer)})
    return Solution(task, is_oracle=False, said=said)
