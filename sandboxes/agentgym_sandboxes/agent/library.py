"""Standard-library values that cross as the parts they are rebuilt from, so that their `__eq__` is Python's own."""

from __future__ import annotations

import builtins
import datetime
import decimal
import fractions
from typing import Callable

Parts = list[object]  # a tag, then what `build` takes

# Types by name: data, and the exceptions. No functions, for the tests might call what a solution returned.
_TYPES: dict[str, type] = {
    name: found
    for name, found in vars(builtins).items()
    if isinstance(found, type)
    and (issubclass(found, BaseException) or name in (
        "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "object", "range",
        "set", "slice", "str", "tuple",
    ))
}  # fmt: skip
_TYPES["NoneType"] = type(None)
_SINGLE = {"...": Ellipsis, "NotImplemented": NotImplemented}
_NAMES = {found: name for name, found in {**_TYPES, **_SINGLE}.items()}


def parts(value: object, kind: type) -> Parts | None:
    """A tag and the parts of a value of exactly one of the types here; None for another."""
    if kind in _PARTS:
        return _PARTS[kind](value)
    if (kind is type or kind in (type(Ellipsis), type(NotImplemented))) and value in _NAMES:
        return ["type", _NAMES[value]]
    return None


def build(tag: str, given: list[object]) -> object:
    """The value of its parts. Raises ValueError or TypeError when they make none."""
    return KINDS[tag](*given)


def _exact(value: object, *kinds: type) -> None:
    if type(value) not in kinds:
        raise ValueError(f"a part of type {type(value).__name__}")


def _datetime_parts(value: datetime.datetime) -> Parts | None:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        return None
    day = [value.year, value.month, value.day]
    return [
        "datetime", *day, value.hour, value.minute, value.second, value.microsecond, value.fold,
        value.tzinfo,
    ]  # fmt: skip


def _time_parts(value: datetime.time) -> Parts | None:
    if value.tzinfo is not None and type(value.tzinfo) is not datetime.timezone:
        return None
    return ["time", value.hour, value.minute, value.second, value.microsecond, value.fold, value.tzinfo]


def _timezone_parts(value: datetime.timezone) -> Parts:
    arguments = value.__getinitargs__()  # type: ignore[attr-defined]
    return ["timezone", *arguments]


def _decimal(digits: object) -> decimal.Decimal:
    _exact(digits, str)
    return decimal.Decimal(digits)  # type: ignore[arg-type]


def _fraction(above: object, below: object) -> fractions.Fraction:
    _exact(above, int)
    _exact(below, int)
    return fractions.Fraction(above, below)  # type: ignore


def _range(start: object, stop: object, step: object) -> range:
    for number in (start, stop, step):
        _exact(number, int)
    return range(start, stop, step)  # type: ignore


def _datetime(*given: object) -> datetime.datetime:
    *numbers, fold, zone = given
    return datetime.datetime(*numbers, zone, fold=fold)  # type: ignore


def _time(*given: object) -> datetime.time:
    *numbers, fold, zone = given
    return datetime.time(*numbers, zone, fold=fold)  # type: ignore


def _named(name: object) -> object:
    _exact(name, str)
    return _TYPES[name] if name in _TYPES else _SINGLE[name]  # type: ignore[index]


_PARTS: dict[type, Callable[..., Parts | None]] = {
    range: lambda value: ["range", value.start, value.stop, value.step],
    slice: lambda value: ["slice", value.start, value.stop, value.step],
    decimal.Decimal: lambda value: ["decimal", str(value)],
    fractions.Fraction: lambda value: ["fraction", value.numerator, value.denominator],
    datetime.date: lambda value: ["date", value.year, value.month, value.day],
    datetime.timedelta: lambda value: ["timedelta", value.days, value.seconds, value.microseconds],
    datetime.timezone: _timezone_parts,
    datetime.datetime: _datetime_parts,
    datetime.time: _time_parts,
}
KINDS: dict[str, Callable[..., object]] = {
    "range": _range,
    "slice": slice,
    "decimal": _decimal,
    "fraction": _fraction,
    "date": datetime.date,
    "timedelta": datetime.timedelta,
    "timezone": datetime.timezone,
    "datetime": _datetime,
    "time": _time,
    "type": _named,
}
