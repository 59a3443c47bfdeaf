"""Units of measurement behind a number: known ones are converted, others compared as words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_TEXT: Final = re.compile(r"\\(?:text|mbox|mathrm|textrm)\s*\{([^{}]*)\}")
_SPACING: Final = re.compile(r"\\[ ,;!]|~")
_MATH_MODE: Final = re.compile(r"(?<!\\)\$([^$]*[^$\\])\$")
_NUMBER: Final = re.compile(r"[0-9][0-9,.]*(?:/[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(r"(?:[a-zA-Zµ°]+|[$€£])(?:\^?\{?[23]\}?(?![0-9])|[²³])?(?:\s*(?:/|\bper\b)\s*[a-zA-Z]+)?")
_POWER: Final = re.compile(r"\^?\{?([23²³])\}?$")
_TABLE: Final = {
    "length": "mm 1/1000 millimeter 1/1000 cm 1/100 centimeter 1/100 m 1 meter 1 metre 1 km 1000 kilometer 1000 "
    "kilometre 1000 in 127/5000 inch 127/5000 ft 381/1250 foot 381/1250 feet 381/1250 yd 1143/1250 yard 1143/1250 "
    "mi 201168/125 mile 201168/125",
    "mass": "mg 1/1000 milligram 1/1000 g 1 gram 1 kg 1000 kilogram 1000 t 1000000 tonne 1000000 ton 1000000 "
    "lb 45359237/100000 pound 45359237/100000 oz 45359237/1600000 ounce 45359237/1600000",
    "time": "ms 1/1000 s 1 sec 1 second 1 min 60 minute 60 h 3600 hr 3600 hour 3600 day 86400 week 604800",
    "volume": "ml 1/1000 milliliter 1/1000 l 1 liter 1 litre 1",
    "dollars": "$ 1 dollar 1 cent 1/100",
    "euros": "€ 1 euro 1",
    "pounds sterling": "£ 1",
}
_KNOWN: Final = {
    name: (dimension, Fraction(factor))
    for dimension, line in _TABLE.items()
    for name, factor in zip(line.split()[::2], line.split()[1::2], strict=True)
}


@dataclass(frozen=True, slots=True)
class Unit:
    """dimension: what it measures, or the word itself where it is unknown. factor: to the dimension's base unit."""

    dimension: str
    factor: Fraction = Fraction(1)
    known: bool = False


def units_of(text: str) -> list[Unit]:
    """The units that the first number of a text may have: a sign of money before it, and the words behind it."""
    text = _SPACING.sub(" ", _TEXT.sub(r" \1", _MATH_MODE.sub(r"\1", text))).replace("\\$", "$")
    number = _NUMBER.search(text)
    if number is None:
        return []
    before = re.search(r"([$€£])\s*[-+]?$", text[: number.start()])
    behind = re.split(r"[.;:()\n]", text[number.end() :])[0]
    return [_unit(name) for name in ([before[1]] if before else []) + _WORD.findall(behind)]


def is_unit(word: str) -> bool:
    """Whether a word is a unit that is converted."""
    return any(form in _KNOWN for form in (word, word.lower(), _singular(word.lower())))


def factor_to(gold: Unit, said: list[Unit]) -> Fraction | None:
    """What a number with the units `said` is multiplied by to be in `gold`; None where it measures something else."""
    for unit in said:
        if unit.dimension == gold.dimension:
            return unit.factor / gold.factor
        if unit.known:
            return None
    return None


def _unit(name: str) -> Unit:
    above, *below = re.split(r"\s*(?:/|\bper\b)\s*", name)
    if below:
        top, bottom = _unit(above), _unit(below[0])
        return Unit(f"{top.dimension} per {bottom.dimension}", top.factor / bottom.factor, top.known and bottom.known)
    power = _POWER.search(name)
    if power and len(name) > len(power[0]):
        one, times = _unit(name[: power.start()]), {"2": 2, "²": 2, "3": 3, "³": 3}[power[1]]
        return Unit(f"{one.dimension}^{times}", one.factor**times, one.known)
    for form in (name, name.lower(), _singular(name.lower())):
        if form in _KNOWN:
            return Unit(*_KNOWN[form], known=True)
    return Unit(_singular(name.lower()))


def _singular(word: str) -> str:
    if word.endswith("ches") or word.endswith("shes"):
        return word[:-2]
    return word[:-1] if word.endswith("s") and len(word) > 2 and not word.endswith("ss") else word
