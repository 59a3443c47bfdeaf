"""Plain values as JSON trees, with a tag for every type, so that what crosses a process keeps its type.

None, bool, float, str and ints of 63 bits stand for themselves; all else is a list that begins with a tag.
There are no JSON objects: reading a tree hashes nothing that the other side chose.
"""

from __future__ import annotations

import json
from typing import Union

Tree = Union[None, bool, int, float, str, list["Tree"]]

MAX_DEPTH = 50
_BIG = 1 << 63
_TAGS = {list: "l", tuple: "t", set: "s", frozenset: "z"}
_SEQUENCES = {tag: kind for kind, tag in _TAGS.items()}


class NotPlain(TypeError):
    """A value of a type that does not cross; `kind` is the type's name."""

    def __init__(self, kind: str) -> None:
        super().__init__("no plain value: " + kind)
        self.kind = kind


def encode(value: object, depth: int = 0) -> Tree:
    """The tree of a value of exactly the builtin types: a subclass could bring an `__eq__` of its own."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value  # type: ignore[return-value]
    if kind is int:
        return value if -_BIG <= value < _BIG else ["i", hex(value)]  # type: ignore
    if depth >= MAX_DEPTH:
        raise NotPlain(f"{kind.__name__} nested more than {MAX_DEPTH} deep")
    if kind is list or kind is tuple:
        return [_TAGS[kind]] + [encode(item, depth + 1) for item in value]  # type: ignore
    if kind is set or kind is frozenset:
        return [_TAGS[kind]] + [encode(item, depth + 1) for item in _ordered(value)]  # type: ignore
    if kind is dict:
        tree: list[Tree] = ["d"]
        for key, item in value.items():  # type: ignore[attr-defined]
            tree.append(encode(key, depth + 1))
            tree.append(encode(item, depth + 1))
        return tree
    if kind is bytes:
        return ["b", value.hex()]  # type: ignore[attr-defined]
    if kind is complex:
        return ["c", value.real, value.imag]  # type: ignore[attr-defined]
    raise NotPlain(kind.__name__)


def decode(tree: Tree) -> object:
    """The value of a tree. Raises ValueError for what is no tree."""
    if type(tree) is not list:
        return tree
    if not tree or type(tree[0]) is not str:
        raise ValueError("a tree without a tag")
    tag, items = tree[0], tree[1:]
    if tag in _SEQUENCES:
        return _SEQUENCES[tag](decode(item) for item in items)
    if tag == "d" and len(items) % 2 == 0:
        return {decode(key): decode(item) for key, item in zip(items[::2], items[1::2])}
    if tag == "i" and len(items) == 1:
        return int(items[0], 16)  # type: ignore[arg-type]
    if tag == "b" and len(items) == 1:
        return bytes.fromhex(items[0])  # type: ignore[arg-type]
    if tag == "c" and len(items) == 2:
        return complex(items[0], items[1])  # type: ignore[arg-type]
    raise ValueError(f"no such tag: {tag[:20]!r}")


def text(tree: Tree) -> str:
    """The one text of a tree; equal texts are equal values of equal types."""
    return json.dumps(tree, separators=(",", ":"))


def _ordered(items: set | frozenset) -> list:  # type: ignore[type-arg]
    """Elements in an order that does not hang on how the set was built."""
    if {type(item) for item in items} in ({int}, {str}):
        return sorted(items)
    return sorted(items, key=lambda item: text(encode(item)))  # not every type has a total order
