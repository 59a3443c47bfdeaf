"""An example of a plugin: the agent finds a number by guesses, each answered with higher or lower."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from agentgym import Environment, Episode, EpisodeContext, Message, Reply, Reward, Split, Task, hookimpl, reward


@dataclass
class Game:
    """The state of one episode."""

    secret: int
    guesses: list[int] = field(default_factory=list)


class GuessNumber(Environment[Game]):
    """Find a number between 1 and `largest`. Recorded in `info`: success (bool), guesses (int)."""

    name = "guess_number"
    rewards = {"success": 1.0, "few_guesses": 0.1}
    max_turns = 7

    def __init__(self, *, largest: Annotated[int, "the largest number that is asked for"] = 100) -> None:
        if largest < 10:
            raise ValueError(f"guess_number: largest is {largest}; give at least 10")
        self._largest = largest

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Even numbers train, odd ones test, so that no task is in both splits."""
        secrets = range(2 if split == "train" else 1, self._largest + 1, 2)
        for secret in sorted(secrets, key=lambda number: hashlib.sha256(f"{seed}/{number}".encode()).digest()):
            question = f"I think of a number between 1 and {self._largest}. Which?"
            yield Task(
                task_id=f"guess_number/{secret}",
                prompt=({"role": "user", "content": question},),
                answer=secret,
                split=split,
            )

    async def start(self, context: EpisodeContext[Game]) -> Game:
        context.info.update(success=False, guesses=0)
        return Game(secret=int(str(context.task.answer)))

    async def reply(self, context: EpisodeContext[Game]) -> Reply:
        game = context.state
        found = re.search(r"-?[0-9]{1,9}", context.messages[-1]["content"])
        if found is None:
            return Reply(done=True, invalid=True)
        guess = int(found[0])
        game.guesses.append(guess)
        context.info.update(success=guess == game.secret, guesses=len(game.guesses))
        if guess == game.secret:
            return Reply(done=True)
        hint: Message = {"role": "user", "content": "Higher." if guess < game.secret else "Lower."}
        return Reply(messages=(hint,))

    def solve(self, task: Task) -> Iterator[Message]:
        """Halve what is left."""
        low, high = 1, self._largest
        while True:
            guess = (low + high) // 2
            (hint,) = yield {"role": "assistant", "content": str(guess)}
            low, high = (guess + 1, high) if hint["content"] == "Higher." else (low, guess - 1)

    @reward
    def few_guesses(self, episode: Episode) -> float:
        """1.0 for the first guess, 1/2 for the second, …; 0.0 when the number was not found."""
        guesses = episode.info["guesses"]
        return 1.0 / guesses if episode.success and isinstance(guesses, int) else 0.0


def polite(episode: Episode) -> float | None:
    """1.0 when the agent says please in every turn; None when it said nothing."""
    said = [message["content"] for message in episode.messages if message["role"] == "assistant"]
    return float(all("please" in text.lower() for text in said)) if said else None


@hookimpl
def environments() -> Mapping[str, type[Environment]]:
    return {"guess_number": GuessNumber}


@hookimpl
def rewards() -> Mapping[str, Reward]:
    return {"polite": Reward(name="polite", function=polite)}
