"""Judges what an agent says: a question back, a refusal, or figures at the end of its last message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Final

from agentgym_envs.tool_use.requests import SYSTEM

_NUMBER: Final = re.compile(r"(?<![0-9.])(?:(?<=\s)-|(?<![\s\S])-)?[0-9]+(?:,[0-9]{3})*(?:\.[0-9]+)?")
_REFUSAL: Final = re.compile(r"\b(?:cannot|can not|can['’]t|unable|not able|impossible|not possible)\b", re.IGNORECASE)
_LONGEST: Final = 2000  # characters; no reply that answers is longer


def asks(said: str) -> bool:
    """Whether it is a question to the user."""
    return said.rstrip().endswith("?")


def refuses(said: str) -> bool:
    return _REFUSAL.search(said) is not None


def numbers_in(text: str) -> list[Decimal]:
    """The numbers of a text in order, in ASCII digits; `1,250` and `1250.0` are 1250."""
    return [Decimal(found.replace(",", "")) for found in _NUMBER.findall(text)]


def is_right(said: str, figures: Sequence[int], heard: Iterable[str]) -> bool:
    """Whether a last message is right.

    figures: those it must end with, in order; without any it must say that it cannot be done, and give no number.
    heard: what the user said; its numbers count nowhere in the message. An echo of the instructions is no answer.
    """
    if len(said) > _LONGEST or SYSTEM in said:
        return False
    known = {number for text in heard for number in numbers_in(text)}
    stated = [number for number in numbers_in(said) if number not in known]
    if not figures:
        return refuses(said) and not stated
    return not refuses(said) and stated[-len(figures) :] == list(figures)
