"""What one side may ask of an object that the other side holds, by the name it has on the wire."""

from __future__ import annotations

import collections
import copy
import operator
from typing import Any, Callable

from . import subclassed
from .raising import made

TESTS_MODULE = "tests"
UNARY: dict[str, Callable[..., object]] = {
    "iter": iter, "next": next, "len": len, "bool": bool, "str": str, "repr": repr, "hash": hash, "int": int,
    "float": float, "complex": complex, "index": operator.index, "abs": abs, "neg": operator.neg,
    "pos": operator.pos, "invert": operator.invert, "reversed": reversed,
}  # fmt: skip
NUMERIC = ("int", "float", "complex", "index", "abs", "neg", "pos", "invert", "round")
COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")
ARITHMETIC = (
    "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor",
)  # fmt: skip
EXACT: dict[str, tuple[type, ...]] = {
    "len": (int,), "bool": (bool,), "str": (str,), "repr": (str,), "format": (str,), "hash": (int,), "int": (int,),
    "float": (float,), "complex": (complex,), "index": (int,), "contains": (bool,), "isinstance": (bool,),
    "issubclass": (bool,), "base": tuple(subclassed.NAMES.values()),
}  # fmt: skip
"""Answers that have to be of just that type."""
PREDICATES = frozenset((
    "startswith", "endswith", "issubset", "issuperset", "isdisjoint", "equals", "equal", "isclose", "allclose",
    "almost_equal", "array_equal", "array_equiv", "approx", "union", "intersection", "difference",
    "symmetric_difference", "compare", "compare_total", "removeprefix", "removesuffix",
))  # fmt: skip
"""Methods that receive what is expected and report how it differs: a returned object could say that it does not."""
OF_VALUES = frozenset(
    name for kind in (bytearray, float, str, list, dict, set, collections.deque) for name in dir(kind) if name[0] != "_"
)
"""Methods that plain values have. An object with such methods of its own is no such value."""


def _run(awaitable: Any) -> object:
    import asyncio

    async def wait() -> object:
        return await awaitable

    return asyncio.run(wait())


def _exit(held: Any, kind: type[BaseException] | None, message: str) -> object:
    """Leave a context manager; what is under way in the other process is raised again for it."""
    if kind is None:
        return type(held).__exit__(held, None, None, None)
    error = made(kind, message)
    try:
        return type(held).__exit__(held, kind, error, None)
    except kind as raised:
        if raised is not error:
            raise
        return False  # the other process goes on raising its own


def _swapped(function: Callable[[Any, Any], object]) -> Callable[[Any, Any], object]:
    return lambda held, other: function(other, held)


OPERATIONS: dict[str, Callable[..., object]] = {
    "call": lambda held, *args, **kwargs: held(*args, **kwargs),
    "make": lambda held, *args, **kwargs: held(*args, **kwargs),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "contains": operator.contains,
    "round": round,
    "divmod": divmod,
    "format": format,
    "isinstance": isinstance,
    "issubclass": issubclass,
    "enter": lambda held: type(held).__enter__(held),
    "exit": _exit,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "await": _run,
    "base": subclassed.base_value,
    **UNARY,
    **{name: getattr(operator, name) for name in COMPARISONS},
}
for _name in ARITHMETIC:
    _function = getattr(operator, _name + "_" if _name in ("and", "or") else _name)
    OPERATIONS[_name] = _function
    OPERATIONS["r" + _name] = _swapped(_function)
    OPERATIONS["i" + _name] = getattr(operator, "i" + _name)


def is_public(name: object) -> bool:
    """Whether the other side may use an attribute of that name."""
    return type(name) is str and (not name.startswith("_") or name in ("__name__", "__wrapped__"))


def perform(held: object, op: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Do what was asked. Raises what the object raises, AttributeError for a name that can't be used."""
    if op in ("getattr", "setattr", "delattr") and not is_public(args[0]):
        raise AttributeError(f"{args[0]!r} is no public name")
    if op in ("setattr", "delattr") and type(held).__module__ == TESTS_MODULE and not _is_data(held, args[0]):
        raise AttributeError(f"{args[0]!r} is not data of this object of the tests")
    return OPERATIONS[op](held, *args, **kwargs)


def _is_data(held: object, name: str) -> bool:
    """Whether a solution may set it: what an object of the tests holds, never a method or what its class defines."""
    if callable(getattr(held, name, None)):
        return False
    of_class = next((vars(base)[name] for base in type(held).__mro__ if name in vars(base)), None)
    return name in getattr(held, "__dict__", ()) or of_class is None or hasattr(type(of_class), "__set__")


_POWERFUL = (
    eval, exec, compile, open, getattr, setattr, delattr, vars, globals, locals, input, breakpoint, __import__,
)  # fmt: skip
_CALLING = frozenset(("call", "hash", "eq", "ne"))
_READING = frozenset(("iter", "next", "len", "getitem", "contains", "reversed", "bool", "hash", "eq", "ne"))


def lendable(value: object) -> frozenset[str] | None:
    """What a solution may do with an object of the tests; None: it does not cross.

    Functions can be called and iterators read, no more: from a frame or a module one gets everywhere. Only
    objects of the tests' own classes show their public attributes.
    """
    kind = type(value)
    if kind.__module__ == TESTS_MODULE:
        return frozenset(OPERATIONS)
    if isinstance(value, type) and value.__module__ == TESTS_MODULE:
        return _CALLING | {"getattr", "isinstance", "issubclass", "repr", "str"}
    if kind.__module__ in ("builtins", "functools", "collections", "itertools", "operator", "array"):
        if any(value is powerful for powerful in _POWERFUL):
            return None
        if callable(value):
            return _CALLING
        if hasattr(kind, "__iter__"):
            return _READING
    return None
