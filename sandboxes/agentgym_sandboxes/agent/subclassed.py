"""The builtin value that an object of a subclass is: what a named tuple or a member of an IntEnum holds."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any, Callable

_COPIES: dict[type, Callable[[Any], object]] = {
    int: int.__int__,
    float: float.__float__,
    complex: lambda value: complex(complex.__pos__(value)),
    str: lambda value: str.__getitem__(value, slice(None)),
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    list: lambda value: list.__getitem__(value, slice(None)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    Counter: lambda value: Counter(dict(dict.items(value))),
    OrderedDict: lambda value: OrderedDict(OrderedDict.items(value)),
    defaultdict: lambda value: defaultdict(value.default_factory, dict.items(value)),
    dict: lambda value: dict(dict.items(value)),
    deque: lambda value: deque(deque.__iter__(value), value.maxlen),
}
"""How a value of exactly such a type is made of one of a subclass, past the methods that the subclass has."""

NAMES: dict[str, type] = {kind.__name__: kind for kind in _COPIES}
UNCHANGING = frozenset((int, float, complex, str, bytes, tuple, frozenset))


def base_type(kind: type) -> type | None:
    """The builtin type of which a type is a subclass; None for that type itself, and for all others."""
    if kind in _COPIES:
        return None
    return next((base for base in kind.__mro__ if base in _COPIES), None)


def base_value(value: object) -> object:
    """The builtin value that it is. Raises TypeError when there is none."""
    base = base_type(type(value))
    if base is None:
        raise TypeError(f"a {type(value).__name__} is no builtin value")
    return _COPIES[base](value)


def lowered(value: object) -> object:
    """The builtin value of an object of a subclass, of one of numpy's scalars; of another, itself."""
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        found = value.item()
        return found if type(found) is bool or type(found) in _COPIES else value
    return value if base_type(type(value)) is None else base_value(value)


_NAMED: dict[tuple[str, tuple[str, ...]], Any] = {}  # the types of named tuples, by name and fields


def is_named(kind: type) -> bool:
    return issubclass(kind, tuple) and type(getattr(kind, "_fields", None)) is tuple


def named_parts(value: Any) -> tuple[object, ...]:
    """The name of its type, its fields and its items; what comes back with these will be of its type again."""
    name, fields = type(value).__name__, type(value)._fields
    _NAMED.setdefault((name, fields), type(value))
    return name, fields, base_value(value)


def build_named(name: object, fields: object, items: object) -> object:
    """The counterpart of `named_parts`. Raises ValueError for what is not a named tuple.

    A tuple without names where a field would replace a tuple's method by one of the other side's.
    """
    if not (type(name) is str and type(fields) is tuple and type(items) is tuple and len(fields) == len(items)):
        raise ValueError("no named tuple")
    if any(type(field) is not str for field in fields):
        raise ValueError("no named tuple")
    if any(hasattr(tuple, field) and callable(item) for field, item in zip(fields, items)):
        return items
    if (name, fields) not in _NAMED:
        _NAMED[name, fields] = namedtuple(name, fields, rename=True)
    return tuple.__new__(_NAMED[name, fields], items)
