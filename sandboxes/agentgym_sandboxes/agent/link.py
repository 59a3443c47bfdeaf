"""Two processes that hold objects for each other: each asks the other to do things with what that one holds.

What a solution hands over is lowered once, here, into plain values. What stays live: functions, iterators, and
instances of its own classes; of a subclass of a builtin type, only where the tests made such an object themselves.

A question is [index, operation, args, kwargs]; while one side waits for its answer, it answers the other's
questions. Arguments that were changed in place are changed on the asking side too. Everything that arrives is
taken for plain values, indices and names; what is anything else ends the conversation.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from types import CoroutineType, MethodType
from typing import Any, Callable, Optional, cast

from . import arrays, operations, subclassed, values
from .channel import Channel, TooMuch
from .raising import Relayed, arguments, crossing_name, library_name, made_class, members, parents, refused, relayed
from .remote import MADE, READ, RETURNED, Proxy
from .source import MAX_MESSAGE
from .values import NotPlain, Reader, Tree, Writer

ENTRY, NAMES, ROOT = 0, 1, 2  # indices that a solution's side has from the start
Lend = Callable[[object], Optional[frozenset[str]]]


class Gone(BaseException):
    """The other process ended or broke the rules. No Exception: a test's own `except` must not hide it."""


def lend_all(value: object) -> frozenset[str]:
    """A solution lets the tests do everything with what it returns."""
    return _EVERYTHING


_EVERYTHING = frozenset(operations.OPERATIONS)


class Link:
    """One end. lend: what the other side may do with an object, or None if it does not cross.

    live: whether the tests work with objects of the solution's. Otherwise they take what is returned for a value.
    """

    def __init__(self, channel: Channel, lend: Lend, *, live: bool = True) -> None:
        self._channel = channel
        self._lend = lend
        self._lowers = lend is lend_all
        self._rank = MADE if self._lowers else RETURNED if live else READ
        self._live: set[type] = set()  # of what the tests made
        self._held: list[object] = []  # and kept alive, so that no id is used again
        self._may: list[frozenset[str]] = []
        self._indices: dict[object, int] = {}
        self._proxies: dict[int, Proxy] = {}
        self._again: dict[int, Proxy] = {}  # for objects that the tests made, handed back
        self._classes: dict[int, type] = {}
        self._class_indices: dict[type, int] = {}
        self.gone = ""

    def hold(self, value: object, may: frozenset[str] = _EVERYTHING) -> int:
        """The index of an object, which stays the same."""
        key: object = id(value)
        if type(value) is MethodType:  # a new object at every look-up
            key = (id(value.__self__), id(value.__func__))
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self._held)
            self._held.append(value)
            self._may.append(may)
        return index

    def proxy(self, index: int, kind: str, *, is_class: bool = False, base: type | None = None) -> Proxy:
        """The proxy of the other side's object, always the same."""
        found = self._proxies.get(index)
        if found is None:
            found = self._proxies[index] = Proxy(self, index, kind, self._rank, is_class=is_class, base=base)
        return found

    def _returned(self, index: int, kind: str, base: type | None) -> Proxy:
        """The proxy of an object that was handed over: of one that the tests made, another proxy, not theirs."""
        found = self.proxy(index, kind, base=base)
        if found._rank > self._rank:
            found = self._again.setdefault(index, Proxy(self, index, kind, self._rank, base=base))
        return found

    def ask(self, proxy: Proxy, op: str, *args: object, **kwargs: object) -> Any:
        """What the other side answers; raises what it raised. Raises Gone when there is no answer."""
        if self.gone:
            raise Gone
        shared: list[object] = []
        writer = Writer(shared, self._give)
        question = [proxy._index, op, writer.tree(args), writer.tree(tuple(kwargs.items()))]
        try:
            self._channel.send(question)
            reply = self._await_reply()
            self._change(shared, reply[-1])
            found = self._read_reply(op, reply, Reader(shared, self._take))
        except TooMuch:
            self.gone = "too much"
        except (EOFError, OSError, ValueError, TypeError, LookupError, ArithmeticError, RecursionError):
            self.gone = "gone"  # it ended, or does not keep to the protocol
        else:
            if isinstance(found, Relayed):
                raise found.error
            return found
        raise Gone

    def answer_all(self) -> None:
        """Answer questions until the other side ends."""
        while True:
            try:
                question = self._channel.receive()
            except EOFError:
                return
            try:
                self._channel.send(self._answer(cast("list[Any]", question)))
            except MemoryError:  # it fitted, but not a second time as text
                self._channel.send(["x", "", ["type", "MemoryError"], ["t"], ["t"], []])

    def _await_reply(self) -> list[Any]:
        while True:
            message = cast("list[Any]", self._channel.receive())
            if type(message[0]) is str:
                return message
            self._channel.send(self._answer(message))

    def _read_reply(self, op: str, reply: list[Any], reader: Reader) -> object:
        kind, content = reply[0], reply[1:-1]
        if kind == "r":
            found = reader.read(content[0])
            if op in operations.EXACT and type(found) not in operations.EXACT[op]:
                raise ValueError(f"{op} answered with a {type(found).__name__}")
            return found
        if kind == "n":
            return Relayed(refused(TypeError(f"returned <{str(content[0])[:100]}>, which is no plain value")))
        if kind == "stop" and op == "next":
            return Relayed(StopIteration(reader.read(content[0])))
        message, found_class, args, attributes = content[0], *(reader.read(tree) for tree in content[1:])
        return relayed(message, found_class, args, attributes)

    def _change(self, shared: list[object], changes: list[Any]) -> None:
        """Change our containers as the other side changed its copies."""
        reader = Reader(shared, self._take)
        for index, tree in changes:
            if tree[0] not in values.MUTABLE or type(index) is not int or index < 0:
                raise ValueError("no change of a container")
            reader.fill(shared[index], tree)

    def _answer(self, question: list[Any]) -> list[Any]:
        index, op, args, kwargs = question
        shared: list[object] = []
        reader, writer = Reader(shared, self._take), Writer(shared, self._give)
        try:
            if op not in self._may[index]:
                refusal = AttributeError if op == "getattr" else TypeError  # `functools.wraps` bears that
                raise refusal(f"an object of the tests can't be used that way: {op}")
            given = cast("tuple[object, ...]", reader.read(args))
            named = dict(cast("tuple[tuple[str, object], ...]", reader.read(kwargs)))
            writer = Writer(shared, self._give)
            before = [values.text(writer.content(held)) for held in shared]
        except Gone:
            raise
        except BaseException as error:
            return [*self._relayed(error, writer), []]
        reply: list[Any]
        try:
            found = operations.perform(self._held[index], op, given, named)
            if op == "make":
                self._live.add(type(found))
            # Changes first: a container that is new on both sides gets its number in the order of reading.
            changes = self._changes(shared, before, writer)
            reply = ["r", writer.tree(found), changes]
        except NotPlain as error:
            reply = ["n", error.kind, []]
        except Gone:
            raise
        except BaseException as error:
            reply = self._failure(op, error, shared, before)
        return reply

    def _failure(self, op: str, error: BaseException, shared: list[object], before: list[str]) -> list[Any]:
        del shared[len(before) :]
        writer = Writer(shared, self._give)
        try:
            changes = self._changes(shared, before, writer)
            if op == "next" and isinstance(error, StopIteration):
                return ["stop", writer.tree(error.value), changes]
            return [*self._relayed(error, writer), changes]
        except BaseException:  # the solution's own exception, attributes and all
            return ["x", "", ["type", "RuntimeError"], ["t"], ["t"], []]

    def _changes(self, shared: list[object], before: list[str], writer: Writer) -> list[list[Tree]]:
        changes: list[list[Tree]] = []
        for index, text in enumerate(before):
            tree = writer.content(shared[index])
            if values.text(tree) != text:
                changes.append([index, tree])
        return changes

    def _relayed(self, error: BaseException, writer: Writer, depth: int = 0) -> list[Any]:
        """An exception as a message, its class, its arguments and its public attributes."""
        try:
            message = str(error)[:MAX_MESSAGE]
        except BaseException:
            message = ""
        try:
            attributes = [(k, v) for k, v in vars(error).items() if operations.is_public(k)]
            args = writer.tree(arguments(error), depth)
            held = writer.tree((*attributes, *members(error)), depth)
        except BaseException:
            args, held = ["t", message], ["t"]
        return ["x", message, self._class_tree(type(error)), args, held]

    def _class_tree(self, kind: type) -> Tree:
        if getattr(builtins, kind.__name__, None) is kind:
            return ["type", crossing_name(kind)]
        if kind in self._class_indices:
            return ["o", self._class_indices[kind]]
        bases = cast("list[Tree]", [self._class_tree(base) for base in parents(kind)])
        return ["e", self.hold(kind), library_name(kind), *bases]

    def _give(self, writer: Writer, value: object, depth: int) -> Tree:
        """The tree of what is not of exactly a plain type."""
        kind = type(value)
        if kind is Proxy and value._link is self:  # type: ignore[attr-defined]
            return ["o", value._index]  # type: ignore[attr-defined]
        if isinstance(value, type) and issubclass(value, BaseException):
            return self._class_tree(value)
        if kind is Relayed:
            return ["told", *self._relayed(value.error, writer, depth + 1)[1:]]  # type: ignore[attr-defined]
        if kind is CoroutineType:
            return ["w", self.hold(value, frozenset(("await",)))]
        array = arrays.array_parts(value)
        if array is not None:
            return [arrays.TAG, *array]
        if kind not in self._live:
            if subclassed.is_named(kind):
                return ["named", *(writer.tree(part, depth + 1) for part in subclassed.named_parts(value))]
            found = subclassed.lowered(value) if self._lowers else value
            if self._lowers and found is value and isinstance(value, Mapping):
                found = dict(value)
            if found is not value:
                return writer.tree(found, depth)
        may = self._lend(value)
        if may is None:
            raise NotPlain(kind.__name__)
        base = subclassed.base_type(kind) if "base" in may else None
        return ["h", self.hold(value, may), kind.__name__, *([base.__name__] if base else [])]

    def _take(self, reader: Reader, tag: str, items: list[Tree]) -> object:
        """The counterpart of `_give`."""
        if tag == arrays.TAG:
            return arrays.build_array(*items)
        if tag == "named":
            return subclassed.build_named(*map(reader.value, items))
        if tag == "told":
            return relayed(items[0], *map(reader.value, items[1:])).error
        index = items[0]
        if type(index) is not int or index < 0:
            raise ValueError("an index is a whole number")
        if tag == "o":
            return self._held[index]
        if tag == "h" and type(items[1]) is str:
            base = subclassed.NAMES[cast(str, items[2])] if len(items) > 2 and self._rank != READ else None
            return self._returned(index, items[1][:100], base)
        if tag == "w":
            return self._waiting(self.proxy(index, "coroutine"))
        if tag == "e":
            if index not in self._classes:
                bases = [reader.value(base) for base in items[2:]]
                made = self._classes[index] = made_class(items[1], bases)
                self._class_indices[made] = index
            return self._classes[index]
        raise ValueError(f"no such tag: {tag[:20]!r}")

    async def _waiting(self, proxy: Proxy) -> object:
        return self.ask(proxy, "await")
