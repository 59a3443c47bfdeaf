"""The environment: one function, written exactly as the house style has it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import product

from agentgym import Environment, Episode, EpisodeContext, Message, Reply, Split, Task, reward

LINES = {
    "take the first {k}": "xs[:{k}]",
    "take the last {k}": "xs[-{k}:]",
    "drop the first {k}": "xs[{k}:]",
    "drop the last {k}": "xs[:-{k}]",
    "add {k} to each": "[x + {k} for x in xs]",
    "subtract {k} from each": "[x - {k} for x in xs]",
    "multiply each by {k}": "[x * {k} for x in xs]",
    "keep numbers above {k}": "[x for x in xs if x > {k}]",
    "keep numbers below {k}": "[x for x in xs if x < {k}]",
    "keep multiples of {k}": "[x for x in xs if x % {k} == 0]",
    "append {k}": "xs + [{k}]",
    "prepend {k}": "[{k}] + xs",
}


class HouseStyle(Environment):
    """Write a function of one step, in the house style. Recorded in `info`: success (bool)."""

    name = "house_style"
    rewards = {"success": 1.0}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The seed sets the order. The split follows from what is asked, so no task is in both."""
        asked = list(product(LINES, range(2, 10)))
        for words, k in sorted(asked, key=lambda one: _hash(f"{seed}/{one}")):
            if (_hash(f"{words} {k}")[0] % 3 == 0) == (split == "test"):
                request = words.format(k=k)
                prompt: Message = {"role": "user", "content": f"Write f(xs): {request}."}
                answer = f"def f(xs):\n    xs = {LINES[words].format(k=k)}\n    return xs"
                yield Task(task_id=f"house_style/{request}", prompt=(prompt,), answer=answer, split=split)

    async def start(self, context: EpisodeContext) -> None:
        context.info["success"] = False  # an episode whose turn is cut has no reply

    async def reply(self, context: EpisodeContext) -> Reply:
        said = context.messages[-1]["content"].strip()
        context.info["success"] = said == context.task.answer
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        """The oracle: what a right agent says."""
        yield {"role": "assistant", "content": str(task.answer)}

    @reward(weight=0.5)
    def right_lines(self, episode: Episode) -> float:
        """The share of lines that are right: a better answer earns more, also where none is perfect."""
        right, said = str(episode.task.answer).split("\n"), episode.messages[-1]["content"].strip().split("\n")
        return sum(a == b for a, b in zip(right, said, strict=False)) / max(len(right), len(said))


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()  # `hash()` is another one in every process
