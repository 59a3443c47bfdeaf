"""Demonstrations to training samples: only what the agent says is trained, its end tokens included."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentgym.text.chat import ChatRenderer
from agentgym.types import Json, Message, Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A conversation to imitate. tools: the schemas that the agent was shown.

    name: says where it comes from, for example a file and a row.
    """

    name: str
    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Json], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A conversation as tokens. trained: 1 for each token that is, else 0; as many as token_ids."""

    name: str
    token_ids: array[int]
    trained: bytes

    def __len__(self) -> int:
        return len(self.token_ids)

    def sample(self) -> Sample:
        zeros = (0.0,) * len(self)
        return Sample(
            sample_id=self.name,
            token_ids=tuple(self.token_ids),
            loss_mask=tuple(map(float, self.trained)),
            logprobs=zeros,
            advantages=zeros,
            versions=tuple(mask - 1 for mask in self.trained),
        )


def written(demonstration: Demonstration, renderer: ChatRenderer) -> Written:
    """The tokens that an episode has in which the agent says the same, up to its last turn.

    Raises ValueError, with the reason, for messages that no episode could have.
    """
    ids = array("i")
    trained = bytearray()
    for piece, is_agents in _pieces(demonstration, renderer):
        ids.extend(piece)
        trained.extend(bytes([is_agents]) * len(piece))
    return Written(name=demonstration.name, token_ids=ids, trained=bytes(trained))


def _pieces(demonstration: Demonstration, renderer: ChatRenderer) -> Iterator[tuple[Sequence[int], bool]]:
    opening, turns = split_turns(demonstration.messages)
    yield renderer.prompt(opening, tools=demonstration.tools), False
    said: Sequence[int] = ()
    for number, (answers, turn) in enumerate(turns):
        if number:
            yield renderer.reply(answers, said), False
        said = renderer.turn(turn)
        yield said, True


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[tuple[list[Message], Message]]]:
    """The opening messages, and every turn of the agent with the messages that it answers. Those after it are left out.

    Raises ValueError where the agent says nothing, begins, or speaks twice in a row.
    """
    turns: list[tuple[list[Message], Message]] = []
    opening: list[Message] = []
    heard: list[Message] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            heard.append(message)
            continue
        if not heard:
            before = "nothing is said before it" if number == 0 else "two assistant messages follow each other"
            raise ValueError(f"message {number}: {before}; each turn of the agent answers something")
        opening = opening or heard
        turns.append((heard, message))
        heard = []
    if not turns:
        raise ValueError("it has no assistant message, so there is nothing to imitate")
    return opening, turns
