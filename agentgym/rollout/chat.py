"""Chat messages to token ids, such that a conversation's ids only ever grow at their end.

What the policy sampled is never rendered or tokenized again. Only two texts come from the template: the
opening prompt, and the text between the end of an agent's turn and the start of its next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from agentgym.errors import UserError
from agentgym.rollout.calls import AgentTurn
from agentgym.rollout.tokenizer import TEMPLATE_ADVICE, Tokenizer
from agentgym.tools import Schema
from agentgym.types import Message

AGENT = "\u27eaagent\u27eb"  # a placeholder for an agent's turn, to see what the template writes after it
USER: Message = {"role": "user", "content": "\u27eauser\u27eb"}


class ChatRenderer:
    """Renders with a tokenizer's own template. Whether it can be continued, `continuation.check_template` says."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.turn_end, self.stop = _turn_end(tokenizer)
        self.end_ids = tuple(sorted({*tokenizer.end_ids, *tokenizer.encode(self.stop)}))

    def prompt(self, messages: Sequence[Message], tools: Sequence[Schema] | None = None) -> tuple[int, ...]:
        """The ids of an opening conversation, up to the start of the agent's turn."""
        text = self.tokenizer.render(self._harmless(messages), generation_prompt=True)
        return self.tokenizer.encode(text)

    def parse(self, completion_ids: Sequence[int]) -> AgentTurn:
        """What the agent said, with its tool calls."""
        text = self.text(completion_ids)
        return AgentTurn(text, text)

    def reply(self, messages: Sequence[Message], said: Sequence[int] = ()) -> tuple[int, ...]:
        """The ids after the agent's turn: the new messages, up to the start of its next turn.

        said: the turn's ids; its last one stands for the end that the template writes, also where it is another.
        Raises UserError where the template does not take the messages.
        """
        end = self.tokenizer.decode(said[-1:]) if said else self.stop
        text = self.between_turns(self._harmless(messages), end)
        known = self.tokenizer.encode(end)  # some tokenizers begin a text otherwise than they continue it
        return self.tokenizer.encode(end + text)[len(known) :]

    def turn(self, text: str) -> tuple[int, ...]:
        """An agent's turn that was written, not sampled (a demonstration), with its end token."""
        message: Message = {"role": "assistant", "content": text}
        safe = self._harmless([message])[0]["content"]
        return self.tokenizer.encode(safe) + self.tokenizer.encode(self.stop)

    def text(self, completion_ids: Sequence[int]) -> str:
        """What the agent said, without its end token."""
        ids = list(completion_ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self.tokenizer.decode(ids)

    def between_turns(self, messages: Sequence[Message], end: str) -> str:
        """The template's text from the `end` of an agent's turn, which is left out, to the start of its next turn."""
        text = _after_turn(self.tokenizer, messages, generation_prompt=True)
        for written in (end, self.turn_end):
            if written and text.lstrip().startswith(written):
                return text.lstrip()[len(written) :]
        return text

    def _harmless(self, messages: Sequence[Message]) -> list[Message]:
        """Special tokens in a message's text are broken up: only the template writes control tokens."""
        safe: list[Message] = []
        for message in messages:
            content = message["content"]
            for token in self.tokenizer.special_tokens:
                if token in content:
                    content = content.replace(token, f"{token[:1]} {token[1:]}")
            safe.append({**message, "content": content})
        return safe


def _after_turn(tokenizer: Tokenizer, messages: Sequence[Message], *, generation_prompt: bool) -> str:
    """What the template writes after an agent's turn that `messages` follow."""
    talk: list[Message] = [USER, {"role": "assistant", "content": AGENT}, *messages]
    text = tokenizer.render(talk, generation_prompt=generation_prompt)
    _, mark, tail = text.partition(AGENT)
    if not mark:
        raise UserError(f"the chat template drops an agent's turn: {text[-200:]!r}. {TEMPLATE_ADVICE}")
    return tail


def _turn_end(tokenizer: Tokenizer) -> tuple[str, str]:
    """The special token that the template writes after an agent's earlier turn, and the one to stop sampling at.

    They are the same for most models. Harmony ends the last turn with one token and writes another in its place
    when the conversation goes on. GLM has no end: a turn stops where the next message begins. "": unknown.
    """
    last = earlier = ""
    with suppress(UserError):  # it may take no second message, and need not for one turn
        last = _after_turn(tokenizer, [], generation_prompt=False)
        earlier = _after_turn(tokenizer, [USER], generation_prompt=True)
    if stop := _leading_token(tokenizer, last.lstrip()):
        token = _leading_token(tokenizer, earlier.lstrip())
        begins = _leading_token(tokenizer, earlier.lstrip()[len(token) :].lstrip())  # the next message
        return token if token == stop or begins else "", stop
    return "", _leading_token(tokenizer, earlier)


def _leading_token(tokenizer: Tokenizer, text: str) -> str:
    return next((token for token in tokenizer.special_tokens if text.startswith(token)), "")
