"""Finds the answer in what an agent wrote and compares it as an exact number."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal, TypeAlias

AnswerFormat: TypeAlias = Literal["auto", "boxed", "hashes"]
"""auto: any mark, or else the last number. boxed, hashes: nothing but what `\\boxed{}` holds, or follows `####`."""

MAX_NUMBER_CHARS: Final = 60  # longer numbers are not answers, and slow to compare
MAX_EXPONENT: Final = 30

_NUMBER: Final = re.compile(
    r"""(?<![\w.])                                  # not in the middle of a word or a number
    (?P<sign>(?<![\w.)])[-+])?
    (?:(?P<whole>[0-9]+)[ ](?=[0-9]+/[0-9]))?       # 3 1/2
    (?P<number>
        (?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?
      | \.[0-9]+
    )
    (?:[eE](?P<exponent>[-+]?[0-9]+))?
    (?:/(?P<divisor>[0-9]+(?:\.[0-9]+)?))?
    (?P<percent>[ ]?%)?""",
    re.VERBOSE,
)
_BOX: Final = r"\\(?:boxed|fbox)\s*\{"
_MARKS: Final[dict[AnswerFormat, re.Pattern[str]]] = {
    "auto": re.compile(rf"####|{_BOX}"),
    "boxed": re.compile(_BOX),
    "hashes": re.compile("####"),
}
_WORDED: Final = re.compile(r"\banswer\b[*_\s]*(?:is\b|[:=])", re.IGNORECASE)  # a mark where there is no other
_LATEX_FRACTION: Final = re.compile(
    r"\\[dt]?frac\s*(?:\{\s*([-+]?[0-9.,]+)\s*\}\s*\{\s*([0-9.,]+)\s*\}|([0-9])\s*([0-9]))"
)
_BARE_BOX: Final = re.compile(r"\\boxed\s+([^\s$.]+)")  # \boxed 5, as some solutions have it
_UNIT: Final = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{[^{}]*\}|\^\s*\{?\\circ\}?|\\(?:degree|ldots)\b")
_LATEX_POWER: Final = re.compile(r"(?<!\s)\s*\\(?:times|cdot)\s*10\s*\^\s*(?:\{\s*([-+]?[0-9]+)\s*\}|([0-9]))")
_PLAIN: Final = str.maketrans({"−": "-", "–": "-", "\u00a0": "", "\u2009": "", "\u202f": "", "％": "%"})


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number; `50%` has the value 50 and is marked as a percentage."""

    value: Fraction
    percent: bool = False

    def __str__(self) -> str:
        return f"{self.value}%" if self.percent else str(self.value)

    def equals(self, right: Number, tolerance: float = 0.0) -> bool:
        """Equal as numbers. A percent sign that only one has is read both ways: 50% is 50 and 1/2.

        Data sets ask `what percent …?` and give 50, or ask for a share and give 0.5. tolerance: a share of `right`.
        """
        if self.percent == right.percent:
            ways = [(self.value, right.value)]
        elif self.percent:
            ways = [(self.value, right.value), (self.value, right.value * 100)]
        else:
            ways = [(self.value, right.value), (self.value * 100, right.value)]
        return any(abs(ours - theirs) <= Fraction(tolerance) * abs(theirs) for ours, theirs in ways)


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
    marks = list(_MARKS[form].finditer(text)) or (list(_WORDED.finditer(text)) if form == "auto" else [])
    if not marks:
        return Found(_pick(text, last=True) if form == "auto" else None, marked=False)
    mark = marks[-1]
    payload = _braced(text, mark.end()) if mark.group().endswith("{") else _line(text[mark.end() :])
    return Found(_pick(payload.rpartition("=")[2], last=False), marked=True, text=payload.strip())


def boxed(text: str) -> str | None:
    """What the last `\\boxed{}` of a solution holds."""
    boxes = list(_MARKS["boxed"].finditer(text))
    if boxes:
        return _braced(text, boxes[-1].end())
    bare = _BARE_BOX.findall(text)
    return bare[-1] if bare else None


def plain_number(text: str) -> Number | None:
    """The number that the whole text is, but for units in `\\text{}` and signs of degrees; else None."""
    found = _NUMBER.fullmatch(_UNIT.sub("", _simplified(text)).strip().rstrip("."))
    return _number(found) if found else None


def parse_number(text: str) -> Number | None:
    """The number that a text is, units aside; None when it holds none or more than one."""
    found = list(_NUMBER.finditer(_simplified(text)))
    return _number(found[0]) if len(found) == 1 else None


def _pick(text: str, *, last: bool) -> Number | None:
    found = list(_NUMBER.finditer(_simplified(text)))
    return _number(found[-1 if last else 0]) if found else None


def _number(match: re.Match[str]) -> Number | None:
    exponent, divisor = match["exponent"], match["divisor"]
    if len(match.group()) > MAX_NUMBER_CHARS or (exponent and abs(int(exponent)) > MAX_EXPONENT):
        return None
    if divisor and Fraction(divisor) == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) * Fraction(10) ** int(exponent or 0)
    value = value / Fraction(divisor or 1) + int(match["whole"] or 0)
    return Number(-value if match["sign"] == "-" else value, percent=match["percent"] is not None)


def _simplified(text: str) -> str:
    text = text.translate(_PLAIN).replace("{,}", ",")
    for spacing in ("\\!", "\\,", "\\;", "\\$", "$", "€", "£"):
        text = text.replace(spacing, "")
    text = text.replace("\\%", "%")
    text = _LATEX_POWER.sub(lambda m: f"e{m[1] or m[2]}", text)
    return _LATEX_FRACTION.sub(_plain_fraction, text)


def _plain_fraction(match: re.Match[str]) -> str:
    above, below = match[1] or match[3], match[2] or match[4]
    digit_before = match.start() > 0 and match.string[match.start() - 1].isdigit()
    return f"{' ' if digit_before else ''}{above}/{below}"


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
