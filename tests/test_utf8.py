"""Texts of all types of values are made clean; a value that is clean stays the same object."""

from collections import OrderedDict, namedtuple
from types import MappingProxyType

import pytest

from agentgym.utf8 import MAX_DEPTH, REPLACEMENT, clean

Pair = namedtuple("Pair", "left right")


class Text(str):
    pass


def nested(text: object, depth: int) -> object:
    for _ in range(depth):
        text = [text]
    return text


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["é", {"\udc00": 1}], ["é", {REPLACEMENT: 1}]),
        ({"a": ({"b": "\ud83d\ude00"},)}, {"a": ({"b": "😀"},)}),
        (Text("\ud800"), REPLACEMENT),
        ([Text("\ud800")], [REPLACEMENT]),
        (Pair("\ud800", 1), (REPLACEMENT, 1)),
        ([OrderedDict(a="\ud800")], [{"a": REPLACEMENT}]),
        ((MappingProxyType({"a": "\ud800"}),), ({"a": REPLACEMENT},)),
        (nested("a", MAX_DEPTH + 1), nested(REPLACEMENT, MAX_DEPTH)),
    ],
)
def test_what_is_not_clean_becomes_it(value: object, expected: object) -> None:
    assert clean(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        {"role": "user", "content": "é 世 😀", "tool_calls": [{"n": (1, 2.5, None, True)}]},
        Text("a"),
        [Pair("é", ()), OrderedDict(a=Text("b")), MappingProxyType({}), object],
        nested("a", MAX_DEPTH),
    ],
)
def test_what_is_clean_stays_the_same_object(value: object) -> None:
    assert clean(value) is value
