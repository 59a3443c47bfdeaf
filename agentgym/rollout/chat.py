"""Chat messages to token ids, such that a conversation's ids only ever grow at their end.

What the policy sampled is never rendered or tokenized again. Only two texts come from the template: the
opening prompt, and the text between the end of an agent's turn and the start of its next one.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentgym.errors import UserError
from agentgym.rollout.tokenizer import Tokenizer
from agentgym.types import Message

_MARK = "\u27eaagent\u27eb"  # a placeholder for an agent's turn, to see what the template writes after it


class ChatRenderer:
    """Renders with a tokenizer's own template, after proving that the template is append-only."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Raises UserError, with the two texts that differ, for a template that rewrites history."""
        self._tokenizer = tokenizer
        check_append_only(tokenizer)

    @property
    def end_ids(self) -> tuple[int, ...]:
        return self._tokenizer.end_ids

    def prompt(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of an opening conversation, up to the start of the agent's turn."""
        text = self._tokenizer.render(self._harmless(messages), generation_prompt=True)
        return self._tokenizer.encode(text)

    def reply(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids after the agent's end token: the new messages, up to the start of its next turn."""
        _, text = _split_turn(self._tokenizer, self._harmless(messages))
        return self._tokenizer.encode(text)

    def turn(self, text: str) -> tuple[int, ...]:
        """An agent's turn that was written, not sampled (a demonstration), with its end token."""
        message: Message = {"role": "assistant", "content": text}
        safe = self._harmless([message])[0]["content"]
        end, _ = _split_turn(self._tokenizer, [{"role": "user", "content": "."}])
        return self._tokenizer.encode(safe) + self._tokenizer.encode(end)

    def text(self, completion_ids: Sequence[int]) -> str:
        """What the agent said, without its end token."""
        ids = list(completion_ids)
        if ids and ids[-1] in self.end_ids:
            ids.pop()
        return self._tokenizer.decode(ids)

    def _harmless(self, messages: Sequence[Message]) -> list[Message]:
        """Special tokens in a message's text are broken up: only the template writes control tokens."""
        safe: list[Message] = []
        for message in messages:
            content = message["content"]
            for token in self._tokenizer.special_tokens:
                if token in content:
                    content = content.replace(token, f"{token[:1]} {token[1:]}")
            safe.append({**message, "content": content})
        return safe


def _split_turn(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[str, str]:
    """The template's text after an agent's turn that `messages` follow: its end token, and the rest."""
    opening: list[Message] = [{"role": "user", "content": "."}, {"role": "assistant", "content": _MARK}]
    text = tokenizer.render([*opening, *messages], generation_prompt=True)
    head, mark, tail = text.rpartition(_MARK)
    if not mark:
        raise UserError(f"the chat template drops an agent's turn: {head[-200:]!r}")
    for end_id in tokenizer.end_ids:
        end = tokenizer.decode([end_id])
        if tail.startswith(end):
            return end, tail[len(end) :]
    raise UserError(
        f"the chat template does not end an agent's turn with one of {tokenizer.decode(tokenizer.end_ids)!r}; "
        f"after the turn it writes {tail[:80]!r}"
    )


def check_append_only(tokenizer: Tokenizer) -> None:
    """Prove on probe conversations that more messages never change what was rendered or tokenized before."""
    for talk in _PROBES:
        for cut in range(1, len(talk)):
            _check_cut(tokenizer, talk, cut)


def _check_cut(tokenizer: Tokenizer, talk: Sequence[Message], cut: int) -> None:
    before = tokenizer.render(talk[:cut], generation_prompt=False)
    if talk[cut]["role"] == "assistant":
        before = tokenizer.render(talk[:cut], generation_prompt=True)
    whole = tokenizer.render(talk, generation_prompt=True)
    if not whole.startswith(before):
        at = next((i for i, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(whole))
        raise UserError(
            "this chat template is not append-only: with more messages, what was rendered before changes from\n"
            f"  …{before[max(0, at - 40) : at + 60]!r}\nto\n  …{whole[max(0, at - 40) : at + 60]!r}\n"
            "so later turns would not continue the tokens that were sampled. "
            "Set model.chat_template to builtin:chatml or to an append-only Jinja file."
        )
    if talk[cut]["role"] == "assistant":
        rest = whole[len(before) :]
        if tokenizer.encode(before) + tokenizer.encode(rest) != tokenizer.encode(whole):
            raise UserError(
                "this chat template cannot be tokenized piece by piece: a token spans the start of the agent's "
                f"turn, at {before[-20:]!r} + {rest[:20]!r}. Set model.chat_template to builtin:chatml."
            )


_PROBES: tuple[tuple[Message, ...], ...] = (
    (
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "five"},
    ),
    (
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\ntwo"},
        {"role": "user", "content": "three"},
    ),
)
