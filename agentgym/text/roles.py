"""The roles of messages as a chat template takes them: many ask for fewer kinds of conversation than programs send."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property

from agentgym.errors import UserError
from agentgym.text.tokenizer import Tokenizer
from agentgym.types import Message

AGENT = "\u27eaagent\u27eb"  # a placeholder for an agent's turn, to see what the template writes after it
USER: Message = {"role": "user", "content": "\u27eauser\u27eb"}
_SYSTEM: Message = {"role": "system", "content": "\u27easystem\u27eb"}
_OTHER_SYSTEM: Message = {"role": "system", "content": "\u27eaother\u27eb"}


class Roles:
    """What a tokenizer's template takes, found out by rendering when it is first asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def taken(self, messages: Sequence[Message], *, opening: bool) -> Sequence[Message]:
        """The messages with nothing lost, in roles that the template takes.

        Several messages of a user in a row become one where roles must alternate. Several system messages that open
        the conversation become one, and a later one becomes the user's, where the template takes no other. opening:
        the messages begin the conversation.
        """
        taken: list[Message] = []
        for message in messages:
            opens = opening and all(one["role"] == "system" for one in taken)
            if message["role"] == "system" and not opens and not self._takes_system_later:
                message = {**message, "role": "user"}
            role = message["role"]
            if taken and taken[-1]["role"] == role and self._is_joined(role):
                taken[-1] = {**taken[-1], "content": f"{taken[-1]['content']}\n\n{message['content']}"}
            else:
                taken.append(message)
        return taken

    def _is_joined(self, role: str) -> bool:
        """Whether two messages of the role in a row are given to the template as one."""
        return (role == "user" and self._joins_users) or (role == "system" and self._joins_systems)

    @cached_property
    def _joins_users(self) -> bool:
        return not self._takes(USER, {**USER, "content": AGENT})

    @cached_property
    def _joins_systems(self) -> bool:
        return not self._takes(_SYSTEM, _OTHER_SYSTEM, USER)

    @cached_property
    def _takes_system_later(self) -> bool:
        """Whether a system message behind an agent's turn is written there, whether another opens or not."""
        later: list[Message] = [USER, {"role": "assistant", "content": AGENT}, USER, _OTHER_SYSTEM]
        return self._takes(_SYSTEM, *later) and self._takes(*later)

    def _takes(self, *messages: Message) -> bool:
        """Whether the template writes the texts of all messages in their order."""
        with suppress(UserError):
            rest = self._tokenizer.render(messages, generation_prompt=True)
            for message in messages:
                _, found, rest = rest.partition(message["content"])
                if not found:
                    return False
            return True
        return False
