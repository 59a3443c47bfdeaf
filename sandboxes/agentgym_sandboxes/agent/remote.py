"""A proxy of an object that the other process holds.

A comparison with anything that is not a proxy is never passed on: `==` is False, `<` raises. So an object that says
it equals everything gains nothing, and what a test expects never reaches the solution that way. An object of a
subclass of a builtin type is asked for the builtin value that it is, and that is compared here.
"""

from __future__ import annotations

from typing import Any, Callable, NoReturn, Protocol, cast

from . import operations, subclassed
from .raising import may_swallow, refused

RETURNED, MADE, DERIVED = 0, 2, 1


class Asked(Protocol):
    """The end of a link."""

    def ask(self, proxy: Proxy, op: str, *args: object, **kwargs: object) -> Any: ...


class Proxy:
    """kind: the name of the object's type. is_class: calling it makes an object under test (see `own`).

    own: RETURNED, MADE or DERIVED. The tests made it by calling the class under test, or derived it from such a one
    by arithmetic, so its operators are what they test: arithmetic with plain values and `in` are asked of it. Of any
    other object they are not: what a function or a method returned could answer as it likes. met: it is what came
    of a derived one and a plain value, as the difference of a result and what is expected; nor is it asked how much
    that is. base: the builtin type that the object's type is a subclass of.
    """

    __slots__ = ("_base", "_is_class", "_kind", "_link", "_met", "_own", "_place", "_value")

    def __init__(self, link: Asked, place: int, kind: str, *, is_class: bool = False, base: type | None = None) -> None:
        for name, value in (
            ("_link", link), ("_place", place), ("_kind", kind), ("_is_class", is_class), ("_own", RETURNED),
            ("_met", False), ("_base", base), ("_value", None),
        ):  # fmt: skip
            object.__setattr__(self, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return self._base or Proxy  # so that `isinstance(point, tuple)` holds

    def __call__(self, *args: object, **kwargs: object) -> object:
        found = self._link.ask(self, "call", *args, **kwargs)
        return _owned(found, MADE) if self._is_class else found

    def __enter__(self) -> object:
        return self._same(self._link.ask(self, "enter"))

    def _same(self, found: object) -> object:
        """Itself, when that is what it answered with."""
        return self if type(found) is Proxy and found._place == self._place else found

    def __getattr__(self, name: str) -> Any:
        if not operations.is_public(name):
            raise AttributeError(f"{self._kind!r} object has no public attribute {name!r}")
        if name in operations.PREDICATES and self._own != MADE:
            if hasattr(self._base, name):
                return getattr(_plain(self), name)
            raise refused(AttributeError(f"{name!r} is not asked of a <{self._kind}> that was returned"))
        return self._link.ask(self, "getattr", name)

    def __setattr__(self, name: str, value: object) -> None:
        self._link.ask(self, "setattr", name, value)

    def __delattr__(self, name: str) -> None:
        self._link.ask(self, "delattr", name)

    def __eq__(self, other: object) -> Any:
        if _by_value(self, other):
            return _plain(self) == _plain(other)
        return self._link.ask(self, "eq", other) if type(other) is Proxy else False

    def __ne__(self, other: object) -> Any:
        if _by_value(self, other):
            return _plain(self) != _plain(other)
        return self._link.ask(self, "ne", other) if type(other) is Proxy else True

    def __hash__(self) -> int:
        if not self._own and _by_value(self, None):
            return hash(_plain(self))
        return self._link.ask(self, "hash")  # type: ignore[no-any-return]

    def __contains__(self, item: object) -> bool:
        if not self._own and _by_value(self, item):
            return item in _plain(self)
        if self._own or type(item) is Proxy:
            return self._link.ask(self, "contains", item)  # type: ignore[no-any-return]
        return any(found is item or found == item for found in iter(self))

    def __round__(self, *digits: object) -> Any:
        _tell(self, "round")
        return self._link.ask(self, "round", *digits)

    def __format__(self, spec: str) -> str:
        return self._link.ask(self, "format", spec)  # type: ignore[no-any-return]

    def __exit__(self, *raised: object) -> Any:
        kind, error, _ = raised  # without the traceback, which holds the tests' frames
        swallowed = self._link.ask(self, "exit", kind, "" if error is None else str(error))
        return swallowed and may_swallow(cast("BaseException | None", error))

    def __copy__(self) -> Any:
        return self._link.ask(self, "copy")

    def __deepcopy__(self, memo: object) -> Any:
        return self._link.ask(self, "deepcopy")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a <{self._kind}> of the other process can't be pickled")

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Proxy and self._link.ask(value, "isinstance", self)

    def __subclasscheck__(self, value: object) -> bool:
        return type(value) is Proxy and self._link.ask(value, "issubclass", self)


def _by_value(proxy: Proxy, other: object) -> bool:
    """Whether two operands meet as the builtin values that they are, here, and nobody is asked about both.

    Two objects under test meet as their class says.
    """
    if type(other) is Proxy:
        return proxy._base is not None and other._base is not None and not (proxy._own or other._own)
    return proxy._base is not None


def _plain(value: object) -> Any:
    """A value, or the builtin value that a proxy's object is: of what can change, as it is now."""
    if type(value) is not Proxy:
        return value
    if value._value is not None:
        return value._value
    found = value._link.ask(value, "base")
    if type(found) is not value._base:
        raise TypeError(f"a <{value._kind}> is no {value._base.__name__}")
    if value._base in subclassed.UNCHANGING:
        object.__setattr__(value, "_value", found)
    return found


def _unary(op: str) -> Callable[[Proxy], object]:
    def ask(self: Proxy) -> object:
        if op in operations.TELLING:
            _tell(self, op)
        return self._link.ask(self, op)

    return ask


def _item(op: str) -> Callable[..., object]:
    return lambda self, *args: self._link.ask(self, op, *args)


def _compare(op: str, sign: str) -> Callable[[Proxy, object], object]:
    def compare(self: Proxy, other: object) -> object:
        if _by_value(self, other):
            return operations.OPERATIONS[op](_plain(self), _plain(other))
        if type(other) is not Proxy:
            _refuse(self, sign, other)
        return self._link.ask(self, op, other)

    return compare


def _arithmetic(op: str, *, in_place: bool = False) -> Callable[..., object]:
    def compute(self: Proxy, other: object, *more: object) -> object:
        if not self._own and _by_value(self, other):
            return operations.OPERATIONS[op](_plain(self), _plain(other), *more)
        if type(other) is not Proxy and not self._own:
            _refuse(self, op, other)
        found = self._link.ask(self, op, other, *more)
        if not self._own:
            return found
        met = self._own == DERIVED and type(other) is not Proxy
        if met and type(found) is not Proxy:
            _refuse(self, op, other)
        return _owned(self._same(found) if in_place else found, DERIVED, met=met or self._met)

    return compute


def _owned(found: object, own: int, *, met: bool = False) -> object:
    if type(found) is Proxy:
        object.__setattr__(found, "_own", max(found._own, own))
        object.__setattr__(found, "_met", found._met or met)
    return found


def _refuse(proxy: Proxy, sign: str, other: object) -> NoReturn:
    raise refused(
        TypeError(f"{sign!r} is not asked of a <{proxy._kind}> that was returned, with a {type(other).__name__}")
    )


def _tell(proxy: Proxy, op: str) -> None:
    if proxy._met:
        raise refused(TypeError(f"{op!r} is not asked of what came of a <{proxy._kind}> and a plain value"))


for _op in set(operations.UNARY) - {"hash"}:
    setattr(Proxy, f"__{_op}__", _unary(_op))
for _op in ("getitem", "setitem", "delitem"):
    setattr(Proxy, f"__{_op}__", _item(_op))
for _op, _sign in (("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    setattr(Proxy, f"__{_op}__", _compare(_op, _sign))
for _op in operations.ARITHMETIC:
    for _prefix in ("", "r", "i"):
        setattr(Proxy, f"__{_prefix}{_op}__", _arithmetic(_prefix + _op, in_place=_prefix == "i"))
for _op in ("divmod",):
    setattr(Proxy, f"__{_op}__", _arithmetic(_op))
