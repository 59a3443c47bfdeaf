"""An exact number, and the one number that an answer states: units, words and currency aside, and nothing beside it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from agentgym_envs.math.calculator import CannotCalculate, calculate
from agentgym_envs.math.units import is_unit

MAX_NUMBER_CHARS: Final = 60  # longer numbers are not answers, and slow to compare
MAX_ANSWER_CHARS: Final = 300
MAX_EXPONENT: Final = 30
ROUNDED: Final = 0.01  # `10/3 = 3.33` is an equation all the same

_NUMBER: Final = re.compile(
    r"""(?<![\w.])                                  # not in the middle of a word or a number
    (?P<sign>(?<![\w.)])[-+])?
    (?:(?P<whole>[0-9]+)[ ](?=[0-9]+/[0-9]))?       # 3 1/2
    (?P<number>
        (?:[1-9][0-9]{0,2}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?
      | \.[0-9]+
    )
    (?:[eE](?P<exponent>[-+]?[0-9]+))?
    (?:/(?P<divisor>[-+]?[0-9]+(?:\.[0-9]+)?))?
    (?P<percent>[ ]?%)?""",
    re.VERBOSE,
)
_WORD: Final = r"(?:[ap]\.m|U\.S|[A-Za-z]+(?:['’][A-Za-z]+|-[A-Za-z]{3,})*['’]?)\.?"
_UNIT: Final = rf"{_WORD}(?:\s?\^\s*\{{?-?[1-9]\}}?)?"
_UNITS: Final = rf"{_UNIT}(?:(?:\s+|\s*/\s*){_UNIT})*"
_BEFORE: Final = re.compile(rf"(?:{_WORD}(?:[\s:,]+{_WORD})*[\s:,]*)?(?:\(\s*(?:{_UNITS})?\s*\)\s*:\s*)?")
_AFTER: Final = re.compile(rf"\s*(?:/\s*)?(?:{_UNITS})?\s*(?:\(\s*{_UNITS}\s*\)\s*)?")
_NAMED: Final = re.compile(r".*(?::|\b(?:is|are|was|equals)\b)\s*", re.DOTALL)  # `x is 4`, `Total: 4`
_OTHER_MEANING = """
or nor and not no none cannot can't isn't wasn't but unless excluding either neither between except versus vs least most
below above under over exceeds plus minus
divided multiplied mod modulo squared cubed sqrt root pi log ln sin cos tan factorial infinity base half halves third
thirds fourth fourths fifth fifths sixth eighth tenth tenths hundredth hundredths thousandth hundred thousand million
billion trillion double twice triple negative zero one two three four five six seven eight nine ten eleven twelve
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety
"""
_NOT_BESIDE: Final = frozenset(_OTHER_MEANING.split())  # with one of these the number is not the answer, or not alone
_NOT_BEFORE: Final = frozenset(("than", "times"))  # more than 4; but `4 times` and `4 more than Bob` are 4
_SHORT_WORDS: Final = frozenset(
    ("a", "an", "as", "at", "be", "by", "he", "in", "is", "it", "my", "of", "on", "so", "we")
)
_FOLLOWING = "st nd rd th am pm sq cu mph kph kB MB GB TB US USD EUR GBP Rs"
_SUFFIXES: Final = frozenset(_FOLLOWING.split())
_SINGLE_UNITS: Final = frozenset("mgshlLCFKNJWV")

_EQUALS: Final = re.compile(r"=|\\approx\b")
_RELATION: Final = re.compile(r"[<>]|\\(?:n?le|n?ge|leq|geq|ne|neq|lt|gt|in|pm|mp|lor|land)(?![A-Za-z])")
_SEVERAL: Final = re.compile(r"[,;&\n]|\\\\|\\q?quad|\b(?:or|and)\b")
_GROUPED: Final = re.compile(r"(?<=[0-9])(?:,|\{,\})(?=[0-9]{3}(?![0-9]))")
_PARENTHESIS: Final = re.compile(r"[(\[{][^()\[\]{}]*[)\]}]")

_SIGNS: Final = str.maketrans(
    {"％": "%", "＝": "=", "，": ",", "−": "-", "–": "-", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot "}
    | {"⁄": "/", "。": ".", "℃": "°C", "℉": "°F", "“": '"', "”": '"'}
    | {"≈": "\\approx ", "≤": "\\le ", "≥": "\\ge ", "≠": "\\ne ", "±": "\\pm ", "∞": "\\infty "}
    | dict.fromkeys("\u00a0\u2009\u202f\u2007\u2008", " ")
)
_INEQUALITY: Final = {"<=": "\\le ", ">=": "\\ge ", "!=": "\\ne ", "==": "="}
_SUPERSCRIPT: Final = re.compile("[⁻⁰¹²³⁴-⁹]+")
_FROM_SUPERSCRIPT: Final = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
_PLAIN: Final = str.maketrans({"−": "-", "–": "-", "\u00a0": "", "\u2009": "", "\u202f": "", "％": "%"})
_ARGUMENT: Final = r"(?:\s*\{\s*([-+]?[0-9.,]+)\s*\}|\s*([0-9]))"
_LATEX_FRACTION: Final = re.compile(rf"\\[dtc]?frac{_ARGUMENT}{_ARGUMENT}")
_LATEX_POWER: Final = re.compile(
    r"(?<=[0-9.])(?<!\s)\s*(?:\\(?:times|cdot)|[*xX])\s*10\s*\^\s*(?:\{\s*([-+]?[0-9]+)\s*\}|(-?[0-9]+)(?![0-9]))"
)
_TEXT: Final = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf|textit|mathit|operatorname)\s*\{([^{}]*)\}")
_FONT: Final = re.compile(r"\\!|\\(?:left|right|displaystyle|rm|bf|large|Large)(?![A-Za-z])")
_DEGREES: Final = re.compile(r"(?:\{\})?\^\s*\{?\s*\\circ\s*\}?|\\degrees?\b|°")
_MONEY: Final = re.compile(r"\\?\$|[€£¥₹¢]|\\(?:pounds|euro|textdollar)\b|\\[()\[\]]")
_ORDINAL: Final = re.compile(r"(?<=[0-9])\s*\^\s*\{?\s*(st|nd|rd|th)\b\s*\}?")
_UNIT_FRACTION: Final = re.compile(r"\\[dt]?frac\s*\{\s*([A-Za-z]+)\s*\}\s*\{\s*([A-Za-z]+)\s*\}")
_SPACING: Final = re.compile(r"\\[,;: ]|~")
_REPEATING: Final = re.compile(r"([0-9]*)\.([0-9]*)\\(?:overline|bar|dot)\s*(?:\{\s*([0-9]+)\s*\}|([0-9]))")
_THOUSANDS: Final = re.compile(r"(?<![\w.,])([1-9][0-9]{0,2}(?: [0-9]{3})+)(?![\w/,]| [0-9])")
_BRACKETED: Final = re.compile(r"(?<![\w)}\]])\(\s*([-+]?\s?[0-9][0-9,./]*\s?%?)\s*\)")
_PERCENT: Final = re.compile(r"(?<=[0-9])\s*(?:\\?%|per ?cent\b)")
_MINUS: Final = re.compile(r"\b(?:minus|negative)\s+(?=[0-9.])", re.IGNORECASE)
_SCALE: Final = re.compile(r"(?<=[0-9])\s+(thousand|million|billion|trillion)s?\b(?!\s*th)", re.IGNORECASE)
_SCALES: Final = {"thousand": "e3", "million": "e6", "billion": "e9", "trillion": "e12"}


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


def parse_number(text: str) -> Number | None:
    """The number that an answer states; None where it states none, several, or something that is not a number.

    Beside it may be units, words and signs of currency, and before it what it is equal to (`x = 40 + 2 = 42`), but no
    operator, relation, list, factor or base: `4 + 1`, `4 or 5`, `4x` and `1:30` are not 4 or 1, and `8/2` is not 4.
    """
    side = last_side(text) if len(text) <= MAX_ANSWER_CHARS else None
    return None if side is None else _single(side)


def plain_number(text: str) -> Number | None:
    """The same for LaTeX of a data set, where letters outside of `\\text{}` are variables."""
    return None if re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", _TEXT.sub("", text))) else parse_number(text)


def last_number(text: str) -> Number | None:
    """The last of all numbers in a text."""
    found = list(_NUMBER.finditer(_simplified(text)))
    return _number(found[-1]) if found else None


def last_side(text: str) -> str | None:
    """What a chain of equations ends with; None where one is false, as far as numbers go, or a side is a list."""
    text = with_signs(text)
    if whole := _TEXT.fullmatch(text.strip()):
        text = whole[1]
    *before, last = _EQUALS.split(text)
    if not before:
        return text
    ends_with = _single(last)
    for side in before:
        outside = _GROUPED.sub("", _TEXT.sub(r" \1 ", side)).strip()
        while outside != (outside := _PARENTHESIS.sub("", outside)):
            pass
        if _RELATION.search(text) or _SEVERAL.search(outside):
            return None
        value = _single(side) or _calculated(side)
        if value is not None and not (ends_with and ends_with.equals(value, ROUNDED)):
            return None
    return last


def with_signs(text: str) -> str:
    """The text with signs such as ≤ in their usual form."""
    text = text.translate(_SIGNS)
    for plain, latex in _INEQUALITY.items():
        text = text.replace(plain, latex)
    return _SUPERSCRIPT.sub(lambda m: f"^{{{m[0].translate(_FROM_SUPERSCRIPT)}}}", text)


def _single(text: str) -> Number | None:
    plain = _as_plain_text(text)
    found = _NUMBER.search(plain)
    if found is None:
        return None
    before, after = plain[: found.start()], plain[found.end() :]
    negative = re.fullmatch(r"(|.*:)\s*-\s+", before, re.DOTALL)  # `- 3`
    if negative and not found["sign"]:
        before = negative[1]
    if not _BEFORE.fullmatch(before.lstrip()) or not _AFTER.fullmatch(after) or not _are_words(before, after):
        return None
    number = _number(found)
    return Number(-number.value, number.percent) if number and negative else number


def _are_words(before: str, after: str) -> bool:
    """Whether words beside a number leave it what it is: none is a variable, an operator or another number."""
    words = re.findall(_WORD, f"{before} {after}")
    if any(part in _NOT_BESIDE for word in words for part in re.split("[-.]", word.lower())):
        return False
    if any(word.lower() in _NOT_BEFORE for word in re.findall(_WORD, before)):
        return False
    attached = re.match(_WORD, after)
    if attached and (not _is_unit(attached[0].rstrip(".")) or attached[0] == "K"):  # 42K is 42,000
        return False
    beside = re.findall(_WORD, f"{_NAMED.sub('', before)} {after[attached.end() :] if attached else after}")
    return all(len(word) > 2 or word.lower() in _SHORT_WORDS or _is_unit(word.rstrip(".")) for word in beside)


def _is_unit(word: str) -> bool:
    return word in _SINGLE_UNITS if len(word) == 1 else is_unit(word) or word in _SUFFIXES


def _calculated(side: str) -> Number | None:
    try:
        return _single(calculate(side).partition(" (")[0])
    except CannotCalculate:
        return None


def _number(match: re.Match[str]) -> Number | None:
    exponent, divisor = match["exponent"], match["divisor"]
    if len(match.group()) > MAX_NUMBER_CHARS or (exponent and abs(int(exponent)) > MAX_EXPONENT):
        return None
    if divisor and Fraction(divisor) == 0:
        return None
    value = Fraction(match["number"].replace(",", "")) * Fraction(10) ** int(exponent or 0) / Fraction(divisor or 1)
    if divisor and value.denominator == 1:
        return None  # `84/2` is the calculation that was asked for
    value += int(match["whole"] or 0)
    return Number(-value if match["sign"] == "-" else value, percent=match["percent"] is not None)


def _as_plain_text(text: str) -> str:
    """An answer without LaTeX, currency, marks of emphasis and what encloses all of it. A tab divides numbers."""
    text = with_signs(text).replace("{,}", ",")
    text = _MONEY.sub("\t", _FONT.sub("", text))
    text = _UNIT_FRACTION.sub(r"\t\1/\2", _SPACING.sub(" ", _TEXT.sub(r"\t\1", text)))
    text = _DEGREES.sub("\t", text)
    text = _PERCENT.sub("%", text)
    text = _LATEX_POWER.sub(lambda m: f"e{m[1] or m[2]}", _REPEATING.sub(_repeating_fraction, text))
    text = _LATEX_FRACTION.sub(_plain_fraction, text)
    text = _SCALE.sub(lambda m: _SCALES[m[1].lower()], _MINUS.sub("-", text))
    text = _THOUSANDS.sub(lambda m: m[1].replace(" ", ""), _BRACKETED.sub(r"\t\1\t", text))
    text = _ORDINAL.sub(r"\1", re.sub(r"(?<=[0-9])\s+/\s+(?=[0-9])", "/", text))
    return _bare(re.sub(r"(?<!\.)[.,;:]$", "", _bare(text)))


def _bare(text: str) -> str:
    while True:
        text = text.strip().strip("*_`\"'#").strip()
        if not re.fullmatch(r"\{[^{}]*\}|<[^<>]*>|\([^()]*\)", text):
            return text
        text = text[1:-1]


def _repeating_fraction(match: re.Match[str]) -> str:
    """`0.1\\overline{6}` is 15/90."""
    head, period = match[1] + match[2], match[3] or match[4]
    if len(head + period) > MAX_NUMBER_CHARS // 3:
        return match[0]
    return f"{int(head + period) - int(head or 0)}/{'9' * len(period)}{'0' * len(match[2])}"


def _plain_fraction(match: re.Match[str]) -> str:
    above, below = match[1] or match[2], match[3] or match[4]
    digit_before = match.start() > 0 and match.string[match.start() - 1].isdigit()
    return f"{' ' if digit_before else ''}{above}/{below}"


def _simplified(text: str) -> str:
    text = text.translate(_PLAIN).replace("{,}", ",")
    for spacing in ("\\!", "\\,", "\\;", "\\$", "$", "€", "£"):
        text = text.replace(spacing, "")
    text = text.replace("\\%", "%")
    text = _LATEX_POWER.sub(lambda m: f"e{m[1] or m[2]}", text)
    return _LATEX_FRACTION.sub(_plain_fraction, text)
