"""Whether a conversation can go on, turn after turn, from the tokens that were sampled."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.errors import UserError
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import TEMPLATE_ADVICE
from agentgym.tools import Schema
from agentgym.types import Message, Role

_MARK = re.compile("(\u27ea[^\u27eb]*\u27eb)")
_THOUGHT = "<think>\nhm\n</think>\n\n"


def check_template(
    renderer: ChatRenderer, roles: Sequence[Role], *, turns: int, tools: Sequence[Schema] | None = None
) -> str:
    """One line about a template that writes earlier turns otherwise than they were sampled; "" for most.

    roles: of the opening messages. One turn needs no more than that they are all rendered. For several, a
    conversation as it is continued is compared with the template's own text of the whole: what is around the
    agent's turns must be the same. The turns themselves may differ: they are kept as they were sampled.
    tools: then they must be in the prompt too, and turns that call them are compared as well.
    Raises UserError with the reason.
    """
    opening: list[Message] = [{"role": role, "content": f"\u27ea{role} {n}\u27eb"} for n, role in enumerate(roles)]
    text = renderer.prompt_text(opening, tools)
    if missing := [message["role"] for message in opening if message["content"] not in text]:
        raise UserError(
            f"the chat template leaves out the text of a {missing[0]} message: {text[-200:]!r}. {TEMPLATE_ADVICE}"
        )
    for name in [function["name"] for tool in tools or () if isinstance(function := tool["function"], Mapping)]:
        if str(name) not in text:
            raise UserError(f"the chat template leaves out the tool {name!r}: {text[-200:]!r}. {TEMPLATE_ADVICE}")
    if turns == 1:
        return ""
    if not renderer.stop:
        raise UserError(
            "the chat template does not end an agent's turn with a special token of this tokenizer; after the turn "
            f"it writes {renderer.between_turns([_user(0)], '')[:80]!r}. {TEMPLATE_ADVICE}"
        )
    notes = []
    if tools:
        notes.append(_compare_calls(renderer, opening, text, tools))
        text = renderer.prompt_text(opening)
    if not text.rstrip().endswith("<think>"):
        notes.append(_compare(renderer, opening, text, ""))
    if not text.rstrip().endswith("</think>"):
        notes.append(_compare(renderer, opening, text, _THOUGHT))
    if _user(2)["content"] not in renderer.between_turns([_user(1), _user(2)], renderer.stop):
        raise UserError(f"the chat template leaves out the second of two user messages. {TEMPLATE_ADVICE}")
    return next(filter(None, reversed(notes)), "")


def _user(number: int) -> Message:
    return {"role": "user", "content": f"\u27eareply {number}\u27eb"}


def _compare(renderer: ChatRenderer, opening: Sequence[Message], ours: str, thought: str) -> str:
    """Continue two turns with this thought, and compare: see `check_template`. ours: the opening's text."""
    talk = list(opening)
    for number in (1, 2):
        said = f"{thought}\u27eaagent {number}\u27eb"
        talk += [{"role": "assistant", "content": said}, _user(number)]
        ours += said.removeprefix("<think>\n" if ours.rstrip().endswith("<think>") else "")
        ours += renderer.stop + renderer.between_turns([_user(number)], renderer.stop)
    return _differences(renderer, ours, renderer.tokenizer.render(renderer.joined(talk), generation_prompt=True))


def _compare_calls(renderer: ChatRenderer, opening: Sequence[Message], ours: str, tools: Sequence[Schema]) -> str:
    """Continue two turns that call, the second with two calls where the template takes them; then compare."""
    talk = list(opening)
    for number, num_calls in ((1, 1), (2, 2)):
        called, results = _calls_and_results(tools, number, num_calls)
        if not _is_rendered(renderer, [*talk, called, *results], tools):  # some templates take one call a turn
            called, results = _calls_and_results(tools, number, 1)
        said = renderer.written(called)
        talk += [called, *results]
        ours += said + renderer.call_stop + renderer.between_turns(results, renderer.call_stop)
    return _differences(renderer, ours, renderer.prompt_text(talk, tools))


def _is_rendered(renderer: ChatRenderer, talk: Sequence[Message], tools: Sequence[Schema]) -> bool:
    """Whether the template takes the messages, with all calls of the last turn."""
    try:
        text = renderer.prompt_text(talk, tools)
    except UserError:
        return False
    last = [message for message in talk if "tool_calls" in message][-1]
    return text.count("\u27eaagent 2\u27eb") >= len(last["tool_calls"]) or len(last["tool_calls"]) == 1


def _calls_and_results(tools: Sequence[Schema], turn: int, num: int) -> tuple[Message, list[Message]]:
    function = tools[0]["function"]
    assert isinstance(function, Mapping)
    name, ids = str(function["name"]), [f"call{turn}000{n}" for n in range(num)]
    calls: list[Mapping[str, Any]] = [
        {"type": "function", "id": one, "function": {"name": name, "arguments": {"x": f"\u27eaagent {turn}\u27eb"}}}
        for one in ids
    ]
    results = [
        Message(role="tool", content=f"\u27earesult {turn} {one}\u27eb", name=name, tool_call_id=one) for one in ids
    ]
    return Message(role="assistant", content="", tool_calls=calls), results


def _differences(renderer: ChatRenderer, ours: str, whole: str) -> str:
    """One line where the agent's turns differ. Raises UserError where what is around them does."""
    here, there = _MARK.split(ours), _MARK.split(whole)  # texts and marks, in turn
    note = ""
    for n, (mine, its) in enumerate(zip(here, there, strict=False)):
        same = mine == its
        if not same and _is_agents(here, n + 1):  # the agent's turn begins in this text
            begin = _num_common(mine, its)
            note = note or _note(mine[begin:], its[begin:])
            same = begin > 0
        elif not same and _is_agents(here, n - 1):
            same = mine.removeprefix(renderer.stop) == its.removeprefix(renderer.turn_end)
        if not same or len(here) != len(there):
            raise UserError(
                "the chat template rewrites history: with more messages it no longer writes\n"
                f"  …{''.join(here[max(0, n - 2) : n + 3])[-160:]!r}\nbut\n"
                f"  …{''.join(there[max(0, n - 2) : n + 3])[-160:]!r}\n"
                f"so later turns would not continue the tokens that were sampled. {TEMPLATE_ADVICE}"
            )
    return note


def _is_agents(pieces: Sequence[str], at: int) -> bool:
    return 0 <= at < len(pieces) and pieces[at].startswith("\u27eaagent")


def _num_common(first: str, second: str) -> int:
    """How many characters both begin with; a token is not cut after its `<`."""
    pairs = enumerate(zip(first, second, strict=False))
    end = next((n for n, (a, b) in pairs if a != b), min(len(first), len(second)))
    return end - first[:end].endswith("<")


def _note(mine: str, its: str) -> str:
    if "".join(mine.split()) == "".join(its.split()):
        return ""
    if "hm" in mine and "hm" not in its:
        return "the chat template drops the thoughts of earlier turns; here they are kept as they were sampled"
    end = _num_common(mine[::-1], its[::-1])
    return (
        f"the chat template writes the agent's earlier turns otherwise, {its[: len(its) - end]!r} for "
        f"{mine[: len(mine) - end]!r}; here they are kept as they were sampled"
    )
