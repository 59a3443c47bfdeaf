"""What a call of an agent program is, in no dialect, and who answers it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from agentgym.tools import Schema, ToolCall
from agentgym.types import Message
from agentgym.utf8 import clean_fields

Finish = Literal["stop", "tool_calls", "length"]
Refusal = Literal["context_length", "ended", "invalid", "unavailable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRequest:
    """One call of an agent, in no dialect.

    messages: content is a str; `tool_calls` of an assistant have arguments as a mapping, or the text where it is no
    JSON object; tool messages have tool_call_id. max_tokens: a cap below the run's own. stop: the text ends before
    it, the ids stay. sampling: temperature, top_p, top_k, seed as asked; in a run the run's own win. dropped: what the
    agent asked for that could not be honoured, and which it is not told. accepted: fields that change no token.
    """

    messages: tuple[Message, ...]
    tools: tuple[Schema, ...] = ()
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    sampling: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()
    accepted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        clean_fields(self, "messages", "tools", "stop", "dropped")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallAnswer:
    """What the policy said. calls: their ids are unique in the episode.

    cached_tokens: of the prompt, those that an earlier call of the conversation had already.
    """

    content: str
    reasoning: str
    calls: tuple[ToolCall, ...]
    finish: Finish
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class CallRefused(Exception):
    """A call that has no answer.

    kind: `context_length`, the prompt leaves no token to sample; `ended`, the episode takes no more calls; `invalid`,
    the parameter `param` can't be honoured; `unavailable`, infrastructure broke.
    """

    def __init__(self, kind: Refusal, message: str, *, param: str = "") -> None:
        super().__init__(message)
        self.kind: Refusal = kind
        self.param = param


class CallHandler(Protocol):
    """Whom a key belongs to. One with an attribute `drops` names the fields of requests that may be dropped unseen."""

    async def call(self, request: CallRequest) -> CallAnswer:
        """Raises CallRefused. Cancelled when the client went away: then nothing is recorded."""


def too_long(num_tokens: int, most: int, what: str) -> str:
    """The refusal of a prompt, from which Claude Code reads how much of a conversation it leaves out to compact it."""
    return f"the prompt has {num_tokens} tokens > {most} maximum, {what}"
