"""The prompt of a call: the ids of what is known of its conversation, as they were sampled, and the rest rendered."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from agentgym.errors import UserError
from agentgym.policies.call_handler import CallRefused, CallRequest
from agentgym.policies.normal_form import Heard, heard
from agentgym.policies.tree import BranchPoint
from agentgym.text.chat import ChatRenderer
from agentgym.tools import Schema
from agentgym.types import Message


def understood(request: CallRequest) -> list[Heard]:
    """The call's messages in normal form. Raises CallRefused where nobody could answer them."""
    if request.max_tokens is not None and request.max_tokens < 1:
        raise CallRefused("invalid", f"max_tokens is {request.max_tokens}; give at least 1", param="max_tokens")
    if not request.messages:
        raise CallRefused("invalid", "there are no messages to answer", param="messages")
    if request.messages[-1]["role"] == "assistant":
        message = "the last message is the assistant's own; a turn can't be continued, end with a user's or a tool's"
        raise CallRefused("invalid", message, param="messages")
    try:
        return heard(request.messages)
    except (ValueError, RecursionError) as error:
        raise CallRefused("invalid", str(error), param="messages") from error


def prompt_ids(renderer: ChatRenderer, branch_point: BranchPoint, tools: Sequence[Schema]) -> array[int]:
    """place: where the conversation leaves what is known. The array may be that of the known turn, which has grown.

    Raises CallRefused for messages or tools that the chat template does not take.
    """
    spoken = branch_point.spoken
    try:
        if spoken is None:
            return array("I", renderer.prompt([one.message for one in branch_point.rest], tools or None))
        new = _continuation(renderer, branch_point.rest, spoken.completion_ids, ended=spoken.ended)
    except UserError as error:
        raise CallRefused("invalid", str(error), param="messages") from error
    ids = spoken.path_ids()
    ids.extend(new)
    return ids


def _continuation(
    renderer: ChatRenderer, rest: Sequence[Heard], said: tuple[int, ...], *, ended: bool
) -> tuple[int, ...]:
    """What follows a turn: messages to it, and where history was rewritten, turns that were never sampled."""
    ids: tuple[int, ...] = ()
    if not ended:  # it was cut, and the conversation goes on
        ids, said = renderer.tokenizer.encode(renderer.stop), ()
    answers: list[Message] = []
    for one in rest:
        if one.message["role"] != "assistant":
            answers.append(one.message)
            continue
        ids += renderer.reply(answers, said)
        said, answers = renderer.turn(one.message), []
        ids += said
    return ids + renderer.reply(answers, said)
