"""Plain values as JSON trees, with a tag for every type, so that what crosses a process keeps its type.

None, bool, float, ints of 63 bits and strings of whole characters are themselves; all else is a list that
begins with a tag. There are no JSON objects: reading a tree hashes nothing that the other side chose.
"""

from __future__ import annotations

import binascii
import json
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Callable, Union

from . import library, subclassed

Tree = Union[None, bool, int, float, str, list["Tree"]]

MAX_DEPTH = 50
_write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_BIG = 1 << 63
SEQUENCES = {"l": list, "t": tuple, "s": set, "z": frozenset}
MAPPINGS = {"d": dict, "counter": Counter, "ordered": OrderedDict}
MUTABLE = frozenset({"l", "s", "d", "counter", "ordered", "default", "deque", "a"})
_SEQUENCE_TAGS: dict[type, str] = {kind: tag for tag, kind in SEQUENCES.items()}
_MAPPING_TAGS: dict[type, str] = {kind: tag for tag, kind in MAPPINGS.items()}
_FACTORIES = {"": None, "int": int, "float": float, "str": str, "list": list, "set": set, "dict": dict}
_SELVES = frozenset({type(None), bool, float})  # and int and str, but for a few of their values
_SHARED = frozenset({list, set, dict, Counter, OrderedDict, defaultdict, deque, bytearray})


class NotPlain(TypeError):
    """A value of a type that does not cross; `kind` is the type's name."""

    def __init__(self, kind: str) -> None:
        super().__init__("no plain value: " + kind)
        self.kind = kind


class Writer:
    """Makes trees of values of exactly the types of the codec: a subclass could bring an `__eq__` of its own.

    shared: None, or a list of the containers that both sides know: one that is in it is written as its index
    in it, and one that is new is added. So the same list twice stays one list. foreign: makes the tree of a value
    of another type, of the writer, the value and its depth; without it such a value is refused.
    """

    def __init__(
        self, shared: list[object] | None = None, foreign: Callable[[Writer, object, int], Tree] | None = None
    ) -> None:
        self.shared = shared
        self._foreign = foreign
        self._indices = {} if shared is None else {id(held): index for index, held in enumerate(shared)}

    def tree(self, value: object, depth: int = 0) -> Tree:
        """The tree of a value. Raises NotPlain."""
        kind = type(value)
        if kind in _SELVES:
            return value  # type: ignore[return-value]
        if kind is int:
            return value if -_BIG <= value < _BIG else ["i", hex(value)]  # type: ignore
        if kind is str:
            return _text_tree(value)  # type: ignore[arg-type]
        if kind not in _CONTAINERS:
            return self._other(value, kind, depth)
        if self.shared is not None and kind in _SHARED:
            index = self._indices.get(id(value))
            if index is not None:
                return ["&", index]
            self._indices[id(value)] = len(self.shared)
            self.shared.append(value)
        return self.content(value, depth)

    def content(self, value: object, depth: int = 0) -> Tree:
        """The tree of a container, even of one that is shared."""
        kind = type(value)
        if depth >= MAX_DEPTH:
            raise NotPlain(f"{kind.__name__} nested more than {MAX_DEPTH} deep")
        if kind is bytearray:
            return ["a", _base64(value)]  # type: ignore[arg-type]
        if kind in _MAPPING_TAGS:
            return self._pairs([_MAPPING_TAGS[kind]], value, depth)
        if kind is defaultdict:
            return self._pairs(["default", _factory_name(value)], value, depth)  # type: ignore
        if kind is deque:
            return ["deque", value.maxlen, *self._items(value, depth)]  # type: ignore
        items = _ordered(value, self) if kind is set or kind is frozenset else value  # type: ignore
        return [_SEQUENCE_TAGS[kind], *self._items(items, depth)]

    def _items(self, items: object, depth: int) -> list[Tree]:
        kinds = set(map(type, items))  # type: ignore[call-overload]
        if kinds <= _SELVES:
            return items  # type: ignore[return-value]
        if kinds == {int} and min(items) >= -_BIG and max(items) < _BIG:  # type: ignore
            return items  # type: ignore[return-value]
        if kinds == {str} and all(map(str.isascii, items)):  # type: ignore
            return items  # type: ignore[return-value]
        return [self.tree(item, depth + 1) for item in items]  # type: ignore[attr-defined]

    def _pairs(self, tree: list[Tree], value: object, depth: int) -> Tree:
        for key, item in value.items():  # type: ignore[attr-defined]
            tree.append(self.tree(key, depth + 1))
            tree.append(self.tree(item, depth + 1))
        return tree

    def _other(self, value: object, kind: type, depth: int) -> Tree:
        if kind is bytes:
            return ["b", _base64(value)]  # type: ignore[arg-type]
        if kind is complex:
            return ["c", value.real, value.imag]  # type: ignore[attr-defined]
        parts = library.parts(value, kind)
        if parts is not None:
            if depth >= MAX_DEPTH:
                raise NotPlain(f"{kind.__name__} nested more than {MAX_DEPTH} deep")
            return [str(parts[0]), *(self.tree(part, depth + 1) for part in parts[1:])]
        if self._foreign is not None:
            return self._foreign(self, value, depth)
        raise NotPlain(kind.__name__)


def lower(writer: Writer, value: object, depth: int) -> Tree:
    """Converts an object of a subclass to the tree of its builtin value, for a writer of data. Raises NotPlain."""
    found = subclassed.lowered(value)
    if found is value:
        raise NotPlain(type(value).__name__)
    return writer.tree(found, depth)


class Reader:
    """Makes the values of trees again; the counterpart of `Writer`.

    shared: as the writer's. foreign: makes the value of a tree whose tag is not the codec's, of the reader, the
    tag and the rest.
    """

    def __init__(
        self, shared: list[object] | None = None, foreign: Callable[[Reader, str, list[Tree]], object] | None = None
    ) -> None:
        self.shared = shared
        self._foreign = foreign

    def read(self, tree: Tree) -> object:
        """The value of a tree. Raises ValueError for what is not a tree."""
        try:
            return self.value(tree)
        except (TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise ValueError("no tree") from error

    def value(self, tree: Tree) -> object:
        """Reads as `read` does, but what is not a tree may raise anything."""
        if type(tree) is not list:
            return tree
        if not tree or type(tree[0]) is not str:
            raise ValueError("a tree without a tag")
        tag, items = tree[0], tree[1:]
        if tag in MUTABLE:
            empty = _empty(tag, items)
            if self.shared is not None:
                self.shared.append(empty)
            self.fill(empty, tree)
            return empty
        if tag in SEQUENCES:
            return SEQUENCES[tag](self._items(items))
        if tag == "&" and len(items) == 1 and self.shared is not None:
            return self.shared[_whole(items[0])]
        if tag in _SCALARS:
            return _SCALARS[tag](*items)
        if tag in library.KINDS:
            return library.build(tag, self._items(items))
        if self._foreign is not None:
            return self._foreign(self, tag, items)
        raise ValueError(f"no such tag: {tag[:20]!r}")

    def fill(self, container: object, tree: list[Tree]) -> None:
        """Put what a mutable container's tree holds in place of what the container holds."""
        tag, items = tree[0], tree[1:]
        if tag == "a":
            container[:] = _bytes(*items)  # type: ignore
        elif tag == "l":
            container[:] = self._items(items)  # type: ignore[index]
        elif tag == "s":
            found = self._items(items)
            container.clear()  # type: ignore[attr-defined]
            container.update(found)  # type: ignore[attr-defined]
        elif tag == "deque":
            found = self._items(items[1:])
            container.clear()  # type: ignore[attr-defined]
            container.extend(found)  # type: ignore[attr-defined]
        else:
            pairs = self._items(items[1:] if tag == "default" else items)
            if len(pairs) % 2:
                raise ValueError("a key without a value")
            container.clear()  # type: ignore[attr-defined]
            for key, item in zip(pairs[::2], pairs[1::2]):
                container[key] = item  # type: ignore[index]

    def _items(self, items: list[Tree]) -> list[object]:
        if list in set(map(type, items)):
            return [self.value(item) for item in items]
        return items  # type: ignore[return-value]


def encode(value: object) -> Tree:
    """The tree of a value. Raises NotPlain."""
    return Writer().tree(value)


def decode(tree: Tree) -> object:
    """The value of a tree. Raises ValueError for what is not a tree."""
    return Reader().read(tree)


def text(tree: Tree) -> str:
    """The one text of a tree; equal texts are equal values of equal types."""
    return _write(tree)


def holds_mutable(tree: Tree) -> bool:
    """Whether a container that can be changed in place is anywhere in the value."""
    return type(tree) is list and (tree[0] in MUTABLE or any(holds_mutable(item) for item in tree[1:]))


def _text_tree(value: str) -> Tree:
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone half of a pair: two of them side by side would be read as one character
        return ["u", _base64(value.encode("utf-8", "surrogatepass"))]
    return value


def _base64(data: bytes) -> str:
    return binascii.b2a_base64(data, newline=False).decode("ascii")


def _bytes(data: Tree) -> bytes:
    if type(data) is not str:
        raise ValueError("bytes are written as a string")
    return binascii.a2b_base64(data)


def _whole(number: Tree) -> int:
    if type(number) is not int or number < 0:
        raise ValueError("an index is a whole number")
    return number


def _factory_name(value: defaultdict) -> str:  # type: ignore[type-arg]
    """The name of a defaultdict's factory, if it crosses; what another one would make is not carried over."""
    for name, factory in _FACTORIES.items():
        if value.default_factory is factory:
            return name
    return ""


def _empty(tag: str, items: list[Tree]) -> object:
    if tag == "default":
        return defaultdict(_FACTORIES[items[0]])  # type: ignore
    if tag == "deque":
        return deque(maxlen=items[0])  # type: ignore[arg-type]
    return {"l": list, "s": set, "a": bytearray, **MAPPINGS}[tag]()


def _ordered(items: set | frozenset, writer: Writer) -> list:  # type: ignore[type-arg]
    """Elements in an order that does not hang on how the set was built."""
    kinds = {type(item) for item in items}
    if kinds in ({int}, {str}):
        return sorted(items)
    return sorted(items, key=lambda item: text(writer.tree(item)))  # not every type has a total order


_CONTAINERS = frozenset({*_SEQUENCE_TAGS, *_MAPPING_TAGS, defaultdict, deque, bytearray})
_SCALARS: dict[str, Callable[..., object]] = {
    "i": lambda digits: int(digits, 16),
    "b": _bytes,
    "c": lambda real, imag: complex(real, imag),
    "u": lambda data: _bytes(data).decode("utf-8", "surrogatepass"),
}
