"""Whether a conversation can go on, turn after turn, from the tokens that were sampled."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentgym.errors import UserError
from agentgym.rollout.chat import ChatRenderer
from agentgym.rollout.tokenizer import TEMPLATE_ADVICE
from agentgym.types import Message, Role

_MARK = re.compile("(\u27ea[^\u27eb]*\u27eb)")
_THOUGHT = "<think>\nhm\n</think>\n\n"


def check_template(renderer: ChatRenderer, roles: Sequence[Role], *, turns: int) -> str:
    """One line about a template that writes earlier turns otherwise than they were sampled; "" for most.

    roles: of the opening messages. One turn needs no more than that they are all rendered. For several, a
    conversation as it is continued is compared with the template's own text of the whole: what is around the
    agent's turns must be the same. The turns themselves may differ: they are kept as they were sampled.
    Raises UserError with the reason.
    """
    opening: list[Message] = [{"role": role, "content": f"\u27ea{role} {n}\u27eb"} for n, role in enumerate(roles)]
    text = renderer.tokenizer.render(opening, generation_prompt=True)
    if missing := [message["role"] for message in opening if message["content"] not in text]:
        raise UserError(
            f"the chat template leaves out the text of a {missing[0]} message: {text[-200:]!r}. {TEMPLATE_ADVICE}"
        )
    if turns == 1:
        return ""
    if not renderer.stop:
        raise UserError(
            "the chat template does not end an agent's turn with a special token of this tokenizer; after the turn "
            f"it writes {renderer.between_turns([_user(0)], '')[:80]!r}. {TEMPLATE_ADVICE}"
        )
    notes = []
    if not text.rstrip().endswith("<think>"):
        notes.append(_compare(renderer, opening, text, ""))
    if not text.rstrip().endswith("</think>"):
        notes.append(_compare(renderer, opening, text, _THOUGHT))
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
    whole = renderer.tokenizer.render(talk, generation_prompt=True)
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
