"""Demonstrations to training samples: only what the agent says is trained, its end tokens included."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, takewhile

from agentgym.rollout.token_prefix import TokenPrefix
from agentgym.text.chat import ChatRenderer
from agentgym.types import Episode, FinishReason, Json, Message, Sample, Task, Turn, VersionSpan


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

    def episode(self, messages: Sequence[Message]) -> Episode:
        """The conversation as an episode that nobody sampled: log-probabilities are 0.0, versions -1.

        messages: of the conversation.
        """
        ids, turns = array("I"), list[Turn]()
        for is_trained, run in groupby(zip(self.token_ids, self.trained, strict=True), lambda pair: pair[1]):
            piece = tuple(token for token, _ in run)
            if is_trained:
                turns.append(
                    Turn(
                        prompt_ids=TokenPrefix(ids),
                        completion_ids=piece,
                        logprobs=(0.0,) * len(piece),
                        versions=(VersionSpan(version=-1, start=0, end=len(piece)),),
                        finish_reason=FinishReason.STOP,
                    )
                )
            ids.extend(piece)
        opening = tuple(takewhile(lambda message: message["role"] != "assistant", messages))
        task = Task(task_id=self.name, prompt=opening)
        return Episode(episode_id=self.name, task=task, seed=0, messages=[*messages], turns=turns)


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
