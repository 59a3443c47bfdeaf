"""What the author of an environment plugin writes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from agentgym.sandbox import Sandbox, Session
from agentgym.types import Json, Message, Split, Task


@dataclass(slots=True, kw_only=True)
class EpisodeContext:
    """One episode, as its environment sees it.

    messages: the prompt and all that was said since. info: JSON that the environment records; it is saved
    with the episode, and rewards read it. `info["success"] = True` says that the goal was reached.
    sandbox: None unless the task asks for one. session: a sandbox of the episode's own, where files, names and
    processes last from turn to turn; None unless the task's spec says `session`. It is closed for you.
    state: anything that lives as long as the episode.
    """

    task: Task
    messages: list[Message]
    turn: int = 0  # agent turns so far
    max_turns: int = 1
    seed: int = 0
    sandbox: Sandbox | None = None
    session: Session | None = None
    info: dict[str, Json] = field(default_factory=dict)
    state: object = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The environment's answer to an agent's turn. invalid: the agent broke the rules."""

    messages: tuple[Message, ...] = ()
    done: bool = False
    invalid: bool = False


class Environment(ABC):
    """Tasks, and the answers to what the agent says. One object serves many episodes at a time.

    So no episode's state may live on `self`: it belongs into the context.
    """

    name: ClassVar[str]
    version: ClassVar[int] = 1
    rewards: ClassVar[Mapping[str, float]]  # default reward names with their weights
    max_turns: ClassVar[int] = 1

    @abstractmethod
    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        """Tasks in an order that the seed fixes. `train` may be endless; `test` ends.

        No task may be in both splits.
        """

    async def start(self, context: EpisodeContext) -> None:  # noqa: B027  optional
        """Prepare one episode."""

    async def reply(self, context: EpisodeContext) -> Reply:
        """Answer the agent's last message, `context.messages[-1]`. Single-turn by default."""
        return Reply(done=True)

    async def finish(self, context: EpisodeContext) -> None:  # noqa: B027  optional
        """Release what `start` took. Always called, after an error too."""
