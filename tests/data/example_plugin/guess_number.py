"""An example of a plugin: the agent finds a number by guessing and being told higher or lower."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import count

from agentgym import Environment, EpisodeContext, Reply, Reward, Task, hookimpl
from agentgym.hooks import EnvironmentFactory
from agentgym.types import Episode, Message, Split


class GuessNumber(Environment):
    """Find a number between 1 and `largest`. Recorded in `info`: success (bool), guesses (list of int)."""

    name = "guess_number"
    rewards = {"success": 1.0, "few_guesses": 0.1}
    max_turns = 7

    def __init__(self, *, largest: int = 100) -> None:
        if largest < 10:
            raise ValueError(f"guess_number: largest is {largest}; give at least 10")
        self._largest = largest

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Even numbers train, odd ones test, so that no task is in both splits."""
        for index in count() if split == "train" else range(self._largest // 2):
            drawn = int.from_bytes(hashlib.sha256(f"{seed}/{index}".encode()).digest()[:8], "big")
            secret = 2 * (drawn % (self._largest // 2)) + (2 if split == "train" else 1)
            question = f"I think of a number between 1 and {self._largest}. Which?"
            yield Task(
                task_id=f"guess_number/{split}/{seed}/{index}",
                prompt=({"role": "user", "content": question},),
                answer=secret,
                split=split,
            )

    async def start(self, context: EpisodeContext) -> None:
        context.info.update(success=False, guesses=[])

    async def reply(self, context: EpisodeContext) -> Reply:
        found = re.search(r"-?[0-9]{1,9}", context.messages[-1]["content"])
        if found is None:
            return Reply(done=True, invalid=True)
        guess, secret = int(found[0]), context.task.answer
        assert isinstance(secret, int)
        guesses = context.info["guesses"]
        assert isinstance(guesses, list)
        guesses.append(guess)
        if guess == secret:
            context.info["success"] = True
            return Reply(done=True)
        hint: Message = {"role": "user", "content": "Higher." if guess < secret else "Lower."}
        return Reply(messages=(hint,))


def few_guesses(episode: Episode) -> float | None:
    """1.0 for the first guess, 1/2 for the second, …; 0.0 when the number was not found."""
    guesses = episode.info.get("guesses")
    if not isinstance(guesses, list):
        return None
    return 1.0 / len(guesses) if episode.success and guesses else 0.0


@hookimpl
def environments() -> Mapping[str, EnvironmentFactory]:
    return {"guess_number": GuessNumber}


@hookimpl
def rewards() -> Mapping[str, Reward]:
    return {"few_guesses": Reward(name="few_guesses", function=few_guesses)}
