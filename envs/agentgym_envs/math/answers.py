"""Finds the answer in what an agent wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from agentgym_envs.math.number import Number, last_number, parse_number

AnswerFormat: TypeAlias = Literal["auto", "boxed", "hashes"]
"""auto: any mark, or else the last number. boxed, hashes: nothing but what `\\boxed{}` holds, or follows `####`."""

_BOX: Final = r"\\(?:boxed|fbox)\s*\{"
_MARKS: Final[dict[AnswerFormat, re.Pattern[str]]] = {
    "auto": re.compile(rf"####|{_BOX}"),
    "boxed": re.compile(_BOX),
    "hashes": re.compile("####"),
}
_WORDED: Final = re.compile(r"\banswer\b[*_\s]*(?:is\b\s*:?|[:=])", re.IGNORECASE)  # a mark where there is no other
_CLAUSE: Final = re.compile(r"[.;!?](?=\s|$)|,?\s(?=(?:which|because|since|so|where)\b)")  # what ends a worded answer
_BARE_BOX: Final = re.compile(r"\\boxed\s+([^\s$.]+)")  # \boxed 5, as some solutions have it


@dataclass(frozen=True, slots=True)
class Found:
    """What the agent gave as its answer. marked: after `####` or `answer:`, or in `\\boxed{}`.

    text: what the mark names, without white space around it.
    """

    number: Number | None
    marked: bool
    text: str = ""


def find_answer(text: str, form: AnswerFormat = "auto") -> Found:
    """The last marked answer, and only that one, so that naming many numbers wins nothing.

    `answer is` is a mark only where there is no other. Without any it is the last number of the text where the form
    allows that.
    """
    marks = list(_MARKS[form].finditer(text))
    if marks:
        end = marks[-1].end()
        payload = _braced(text, end) if marks[-1].group().endswith("{") else _line(text[end:])
    elif form == "auto" and (worded := list(_WORDED.finditer(text))):
        line = _line(text[worded[-1].end() :]).strip()
        payload = _CLAUSE.split(line, maxsplit=1)[0]
        if not any(map(str.isdigit, payload)):  # `The answer is easy. It is 42.`
            return Found(last_number(line), marked=True, text=payload)
    else:
        return Found(last_number(text) if form == "auto" else None, marked=False)
    return Found(parse_number(payload), marked=True, text=payload.strip())


def boxed(text: str) -> str | None:
    """What the last `\\boxed{}` of a solution holds."""
    boxes = list(_MARKS["boxed"].finditer(text))
    if boxes:
        return _braced(text, boxes[-1].end())
    bare = _BARE_BOX.findall(text)
    return bare[-1] if bare else None


def _braced(text: str, start: int) -> str:
    """The text between the brace that ends at `start` and its partner; all of the rest if there is none."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[start:index]
    return text[start:]


def _line(text: str) -> str:
    """The first line that is not blank."""
    return next((line for line in text.splitlines() if line.strip("*_: \t")), "")
