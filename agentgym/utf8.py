"""Text that UTF-8 can encode: the one rule for all text from outside, where it enters.

JSON's `\\u` and Python's own texts can hold half of a character (a lone surrogate), which no file, socket or tokenizer
takes. Two halves side by side are put together, any other becomes U+FFFD, as JavaScript's `toWellFormed` does it. Data
that carry text of a policy, a tool, a sandbox or a program clean themselves when they are made: `clean_fields`.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, TypeVar, cast

Value = TypeVar("Value")

REPLACEMENT = "\ufffd"
MAX_DEPTH = 128
"""What is nested deeper becomes U+FFFD: nothing of ours reads or saves it."""
_WITHOUT_TEXT = frozenset({bool, int, float, type(None)})


def clean_text(text: str) -> str:
    """The same object where nothing has to be replaced."""
    if text.isascii():
        return text
    try:
        text.encode()
        return text
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean(value: Value, depth: int = MAX_DEPTH) -> Value:
    """The value with all its texts clean, names in mappings too; the same object where nothing has to be replaced."""
    return value if _is_clean(value, depth) else _cleaned(value, depth)


def clean_fields(data: object, *names: str) -> None:
    """Cleans these fields in a dataclass's `__post_init__`, frozen or not."""
    for name in names:
        value = getattr(data, name)
        if type(value) is str and value.isascii():  # most are, and a turn of an episode has ten
            continue
        if (new := clean(value)) is not value:
            object.__setattr__(data, name, new)


def _is_clean(value: Any, depth: int) -> bool:
    """Whether nothing has to be replaced; False also where that takes a closer look, as at types that JSON has not."""
    kind = type(value)
    if kind in _WITHOUT_TEXT:
        return True
    if kind is str:
        return value.isascii() or clean_text(value) is value
    if kind is not dict and kind is not tuple and kind is not list:
        return not isinstance(value, (str, Mapping, list, tuple))
    if not depth:
        return False
    depth -= 1
    if kind is dict:
        for name, part in value.items():
            if not (type(name) is str and name.isascii()) and not _is_clean(name, depth):
                return False
            if not (type(part) is str and part.isascii()) and not _is_clean(part, depth):
                return False
        return True
    for part in value:  # noqa: SIM110  a generator would cost more
        if not (type(part) is str and part.isascii()) and not _is_clean(part, depth):
            return False
    return True


def _cleaned(value: Value, depth: int) -> Value:
    new: Any = value
    if isinstance(value, str):
        new = clean_text(value)
    elif isinstance(value, (Mapping, list, tuple)):
        if not depth:
            return cast(Value, REPLACEMENT)
        if isinstance(value, Mapping):
            new = {_cleaned(name, depth - 1): _cleaned(part, depth - 1) for name, part in value.items()}
            same = all(map(operator.is_, new, value)) and all(map(operator.is_, new.values(), value.values()))
        else:
            parts = [_cleaned(part, depth - 1) for part in value]
            same = all(map(operator.is_, parts, value))
            new = tuple(parts) if isinstance(value, tuple) else parts
        if same:
            return value
    return cast(Value, new)
