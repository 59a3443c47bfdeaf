"""A proxy of an object that the other process holds, for the few that stay live.

A comparison with anything that is not a proxy is never passed on: `==` is False, `<` raises. So an object that says
it equals everything gains nothing, and what a test expects never reaches the solution that way. An object of a class
under test that extends a builtin type is asked for the builtin value that it is, and that is compared here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Callable, NoReturn, Protocol, cast

from . import operations, subclassed
from .raising import may_swallow, refused

MET, READ, RETURNED, DERIVED, MADE = range(5)
"""What a proxy may be asked. MADE: all, for the tests made it by calling the class under test. DERIVED: the same, for
it came of such ones by arithmetic, but with a plain value only for an object, which is then MET, as is all that comes
of it: it is like the difference of a result and what is expected, and nobody asks it how much that is. RETURNED: no
arithmetic with plain values, for it could answer as it likes. READ: returned where the tests expect a value. It is
read once, so that a second look can't find another value, and is no number."""


class Asked(Protocol):
    """The end of a link."""

    def ask(self, proxy: Proxy, op: str, *args: object, **kwargs: object) -> Any: ...


class Proxy:
    """kind: the name of the object's type. rank: MADE and so on. is_class: calling it makes an object under test.

    base: the builtin type that the object's type is a subclass of.
    """

    __slots__ = ("_base", "_index", "_is_class", "_kind", "_link", "_rank", "_read")

    def __init__(
        self, link: Asked, index: int, kind: str, rank: int, *, is_class: bool = False, base: type | None = None
    ) -> None:
        for name, value in (
            ("_link", link), ("_index", index), ("_kind", kind), ("_rank", rank), ("_is_class", is_class),
            ("_base", base), ("_read", {}),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._base or Proxy  # so that `isinstance(bag, list)` holds

    def __call__(self, *args: object, **kwargs: object) -> object:
        if not self._is_class:
            return self._link.ask(self, "call", *args, **kwargs)
        return _raised(self._link.ask(self, "make", *args, **kwargs), MADE)

    def __enter__(self) -> object:
        return self._same(self._link.ask(self, "enter"))

    def _same(self, found: object) -> object:
        """Itself, when that is what it answered with."""
        return self if type(found) is Proxy and found._index == self._index else found

    def __getattr__(self, name: str) -> Any:
        if not operations.is_public(name):
            raise AttributeError(f"{self._kind!r} object has no public attribute {name!r}")
        if name in operations.PREDICATES and self._rank != MADE:
            if hasattr(self._base, name):
                return getattr(_plain(self), name)
            raise refused(AttributeError(f"{name!r} is not asked of a <{self._kind}> that was returned"))
        if name not in operations.OF_VALUES:
            return self._link.ask(self, "getattr", name)
        found = self._once("getattr", name)
        if self._rank == READ and callable(found):  # `bool` would be a fine `count`
            raise refused(AttributeError(f"a <{self._kind}> has a {name!r} of its own, and is taken for a value"))
        return found

    def __hash__(self) -> int:
        if self._rank < DERIVED and _by_value(self, None):
            return hash(_plain(self))
        return self._once("hash")  # type: ignore[no-any-return]

    def __contains__(self, item: object) -> bool:
        if self._rank < DERIVED and _by_value(self, item):
            return item in _plain(self)
        if self._rank >= DERIVED or type(item) is Proxy:
            return self._link.ask(self, "contains", item)  # type: ignore[no-any-return]
        return any(found is item or found == item for found in iter(self))

    def __iter__(self) -> Iterator[object]:
        if self._rank != READ:
            return self._ask_revealing("iter")  # type: ignore[no-any-return]
        if "iter" not in self._read:
            found = self._same(self._link.ask(self, "iter"))
            self._read["iter"] = None if found is self else _Reading(cast("Iterator[object]", found))
        reading = self._read["iter"]
        return cast("Iterator[object]", self) if reading is None else iter(reading)

    def __next__(self) -> object:
        if "ended" in self._read:
            raise StopIteration
        try:
            return self._link.ask(self, "next")
        except StopIteration:
            if self._rank == READ:
                self._read["ended"] = True  # it can't begin again
            raise

    def _items(self) -> list[object]:
        """The elements of what is read once. Raises TypeError where there are none, or for an iterator."""
        if iter(self) is self:
            raise TypeError(f"a <{self._kind}> has no length and no indices")
        if "items" not in self._read:
            self._read["items"] = [*iter(self)]
        return self._read["items"]  # type: ignore[no-any-return]

    def __len__(self) -> int:
        return len(self._items()) if self._rank == READ else self._ask_revealing("len")

    def __getitem__(self, key: Any) -> object:
        return self._items()[key] if self._rank == READ else self._link.ask(self, "getitem", key)

    def __reversed__(self) -> Iterator[object]:
        return reversed(self._items()) if self._rank == READ else self._link.ask(self, "reversed")

    def __bool__(self) -> bool:
        if self._rank != READ:
            return self._ask_revealing("bool")  # type: ignore[no-any-return]
        try:
            return bool(self._items())
        except TypeError:
            return self._once("bool")  # type: ignore[no-any-return]

    def _ask(self, op: str, *args: object) -> Any:
        return self._link.ask(self, op, *args)

    def _ask_revealing(self, op: str, *args: object) -> Any:
        """An answer that reveals how far a difference is from zero."""
        if self._rank <= READ:
            raise refused(TypeError(f"{op!r} is not asked of a <{self._kind}> that is taken for a value"))
        return self._link.ask(self, op, *args)

    def _once(self, op: str, *args: object) -> Any:
        """An answer; of what is read once, the first."""
        if self._rank != READ:
            return self._link.ask(self, op, *args)
        question = (op, *args)
        if question not in self._read:
            self._read[question] = self._link.ask(self, op, *args)
        return self._read[question]

    def __exit__(self, *raised: object) -> Any:
        kind, error, _ = raised  # without the traceback, which holds the tests' frames
        swallowed = self._link.ask(self, "exit", kind, "" if error is None else str(error))
        return swallowed and may_swallow(cast("BaseException | None", error))

    def __deepcopy__(self, memo: object) -> Any:
        return self._link.ask(self, "deepcopy")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a <{self._kind}> of the other process can't be pickled")

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Proxy and self._link.ask(value, "isinstance", self)

    def __subclasscheck__(self, value: object) -> bool:
        return type(value) is Proxy and self._link.ask(value, "issubclass", self)


class _Reading:
    """What something iterates over, read once, as far as it is asked for."""

    def __init__(self, source: Iterator[object]) -> None:
        self._source = source
        self._found: list[object] = []

    def __iter__(self) -> Iterator[object]:
        for number in itertools.count():
            if number == len(self._found):
                try:
                    self._found.append(next(self._source))
                except StopIteration:
                    self._source = iter(())
                    return
            yield self._found[number]


def _by_value(proxy: Proxy, other: object) -> bool:
    """Whether two operands meet as the builtin values that they are, here, and nobody is asked about both.

    Two objects under test meet as their class says.
    """
    if type(other) is Proxy:
        return proxy._base is not None and other._base is not None and max(proxy._rank, other._rank) < DERIVED
    return proxy._base is not None


def _plain(value: object) -> Any:
    """A value, or the builtin value that a proxy's object is now."""
    if type(value) is not Proxy:
        return value
    found = value._read["base"] if "base" in value._read else value._link.ask(value, "base")
    if type(found) is not value._base:
        raise TypeError(f"a <{value._kind}> is no {value._base}")
    if value._base in subclassed.UNCHANGING:
        value._read["base"] = found
    return found


def _binary(op: str, sign: str) -> Callable[..., object]:
    compares = op in operations.COMPARISONS

    def compute(self: Proxy, other: object, *more: object) -> object:
        returned = self._rank in (READ, RETURNED)
        if (compares or returned) and _by_value(self, other):
            return operations.OPERATIONS[op](_plain(self), _plain(other), *more)
        is_plain = type(other) is not Proxy
        if is_plain and op in ("eq", "ne"):
            return op == "ne"
        if is_plain and (compares or returned):
            _refuse(self, sign, other)
        found = self._link.ask(self, op, other, *more)
        if compares:
            return found
        meets = self._rank == MET or (self._rank == DERIVED and is_plain)
        if meets and is_plain and type(found) is not Proxy:
            _refuse(self, sign, other)
        if meets and type(found) is Proxy:
            object.__setattr__(found, "_rank", MET)
        elif self._rank >= DERIVED:
            return _raised(self._same(found) if op[0] == "i" and op != "invert" else found, DERIVED)
        return found

    return compute


def _raised(found: object, rank: int) -> object:
    if type(found) is Proxy and found._rank != MET:
        object.__setattr__(found, "_rank", max(found._rank, rank))
    return found


def _refuse(proxy: Proxy, sign: str, other: object) -> NoReturn:
    raise refused(
        TypeError(f"{sign!r} is not asked of a <{proxy._kind}> that was returned, with a {type(other).__name__}")
    )


def _define(ask: str, op: str) -> None:
    setattr(Proxy, f"__{op}__", lambda self, *args: getattr(self, ask)(op, *args))


for _op in operations.NUMERIC:
    _define("_ask_revealing", _op)
for _op in ("str", "repr", "format"):
    _define("_once", _op)
for _op in ("setattr", "delattr", "setitem", "delitem", "copy"):
    _define("_ask", _op)
for _op, _sign in (("eq", "=="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(Proxy, f"__{_op}__", _binary(_op, _sign))
for _op in ("divmod", *(prefix + op for op in operations.ARITHMETIC for prefix in ("", "r", "i"))):
    setattr(Proxy, f"__{_op}__", _binary(_op, _op))
