"""The environment: one word of three is asked for, and the house style is to answer with that word alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import permutations

from agentgym import Environment, Episode, EpisodeContext, Message, Reply, Split, Task, reward

WORDS = ["apple", "bird", "boat", "book", "bread", "brick", "bridge", "cake", "camp", "candle", "castle", "chair"]
PLACES = {"first": 0, "second": 1, "last": -1}


class HouseStyle(Environment):
    """Pick a word, and say nothing else. Recorded in `info`: success (bool)."""

    name = "house_style"
    rewards = {"success": 1.0}

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """The seed sets the order. The split follows from which words are offered, so no choice is in both."""
        asked = [(place, words) for place in PLACES for words in permutations(WORDS, 3)]
        for place, words in sorted(asked, key=lambda one: _hash(f"{seed}/{one}")):
            if (_hash(" ".join(sorted(words)))[0] % 3 == 0) == (split == "test"):
                prompt: Message = {"role": "user", "content": f"Give the {place} word: {' '.join(words)}"}
                name = f"house_style/{place}/{'-'.join(words)}"
                yield Task(task_id=name, prompt=(prompt,), answer=words[PLACES[place]], split=split)

    async def start(self, context: EpisodeContext) -> None:
        context.info["success"] = False  # an episode whose turn is cut has no reply

    async def reply(self, context: EpisodeContext) -> Reply:
        said = context.messages[-1]["content"].strip()
        context.info["success"] = said == context.task.answer
        return Reply(done=True)

    def solve(self, task: Task) -> Iterator[Message]:
        """The oracle: what a right agent says."""
        yield {"role": "assistant", "content": str(task.answer)}

    @reward(weight=0.25)
    def few_words(self, episode: Episode) -> float:
        """1.0 for one word, 0.5 for two, and so on: a shorter answer earns more, also where it is wrong."""
        said = episode.messages[-1]["content"].split()
        return 1.0 / len(said) if said else 0.0


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()  # `hash()` is another one in every process
