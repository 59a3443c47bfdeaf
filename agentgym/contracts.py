"""Contracts: whether a class, or what a factory made, has the methods of its base class, and as they are called."""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, Self, cast

from agentgym.errors import UserError

log = logging.getLogger(__name__)


class ContractError(UserError):
    """A class or an object is incomplete: the message names each method that is missing or of another form."""


class Contract(Protocol):
    """Base of the protocols that plugins inherit: an object of an incomplete class is refused when it is made."""

    def __new__(cls, *args: object, **named: object) -> Self:
        for base in cls.__mro__:
            if Contract in base.__bases__:
                check_class(cls, base)
        return super().__new__(cls)


def check_class(found: type, base: type, what: str = "") -> None:
    """Raises ContractError for a class that does not do what `base` asks for. what: names it, with its plugin."""
    if problems := _problems(found, base):
        raise ContractError(f"{what or _shown(found)} is not a complete {_shown(base)}: {'; '.join(problems)}")


def check_made(found: object, base: type, what: str) -> None:
    """Raises ContractError unless a factory returned an object with the methods of `base`."""
    if inspect.iscoroutine(found):
        found.close()
        raise ContractError(f"{what} is made by an `async def`; write `def`: it only makes the object")
    if isinstance(found, type):
        raise ContractError(f"{what}: its factory returned the class {_shown(found)}; return an object of it")
    kind: type = type(found)
    names = [name for name in _members(base) if _has(found, name)]
    if not names:
        raise ContractError(f"{what}: its factory returned {found!r:.80}; return an object of {_shown(base)}")
    if problems := _problems(kind, base) if base in kind.__mro__ else tuple(_found_in(found, base)):
        raise ContractError(f"{what} is not a complete {_shown(base)}: {'; '.join(problems)}")


def check_call(function: object, num_arguments: int, what: str) -> None:
    """Raises ContractError for a function that cannot be called with so many arguments by their positions."""
    try:
        signature = inspect.signature(function)  # type: ignore[arg-type]  # what is no function has none
    except (TypeError, ValueError):
        return  # written in C
    if not _takes(signature, ("",) * num_arguments, {}):
        raise ContractError(f"{what} is called with {num_arguments} argument(s), and takes {signature}")


@functools.lru_cache(maxsize=512)
def _problems(found: type, base: type) -> tuple[str, ...]:
    problems = tuple(_found_in(found, base))
    if not problems:
        warn_misspelt(found, base)
    return problems


@functools.lru_cache(maxsize=512)
def warn_misspelt(found: type, base: type) -> None:
    """Warn once of methods that may be meant for one of `base` that a class can leave out."""
    for name, meant in _misspelt(found, base):
        log.warning("%s has a method `%s`, which nothing calls; did you mean `%s`?", _shown(found), name, meant)


def _misspelt(found: type, base: type) -> Iterator[tuple[str, str]]:
    """Methods of a class that it does not use itself, each with the method of `base` that may be meant."""
    bodies = [vars(one) for one in found.__mro__ if one not in base.__mro__]
    own = {name: value for body in bodies for name, value in body.items() if inspect.isfunction(value)}
    used = {name for function in own.values() for name in function.__code__.co_names}
    for name in own.keys() - _members(base).keys() - used:
        if close := difflib.get_close_matches(name, _members(base).keys() - own.keys(), 1, 0.88):
            yield name, close[0]


def _found_in(found: object, base: type) -> Iterator[str]:
    """What a class, or an object of a class that does not inherit `base`, lacks of it."""
    kind = found if isinstance(found, type) else type(found)
    inherits = base in kind.__mro__
    members = _members(base)
    missing = getattr(kind, "__abstractmethods__", ()) if inherits else _lacking(found, members)
    if missing:
        yield f"it does not define {', '.join(f'`{name}`' for name in sorted(missing))}"
    for name in sorted(missing):
        others = [n for n in dir(kind) if n not in members and not n.startswith("_")]
        if close := difflib.get_close_matches(name, others, 1, 0.6):
            yield f"did you mean `{name}` by `{close[0]}`?"
    for name, wanted in members.items():
        if name in missing or not _has(found, name):  # what an object sets when it is made
            continue
        given = inspect.getattr_static(found, name, wanted)  # what only `__getattr__` gives is not looked at
        if given is not wanted and (problem := _form(name, given, wanted)):
            yield problem


def _lacking(found: object, members: Mapping[str, object]) -> list[str]:
    """Names of a base class that are missing here. A class that does not inherit it may set values when it is made."""
    lacking = [name for name in members if not _has(found, name)]
    return [n for n in lacking if not (isinstance(found, type) and isinstance(members[n], property))]


def _has(found: object, name: str) -> bool:
    """Whether there is such an attribute; a property is not asked, for it may want a started object."""
    missing = object()
    return inspect.getattr_static(found, name, missing) is not missing or hasattr(found, name)


def _members(base: type) -> dict[str, object]:
    """The public methods and properties that a base class declares, with those of its own bases."""
    found: dict[str, object] = {}
    for one in reversed(base.__mro__):
        if one.__module__ not in ("builtins", "typing", "abc"):
            public = {name: v for name, v in vars(one).items() if not name.startswith("_") or name == "__call__"}
            found.update({n: v for n, v in public.items() if isinstance(v, property) or inspect.isroutine(v)})
    return found


def _form(name: str, given: object, wanted: object) -> str:
    """What is wrong with the form of a method; empty when nothing is."""
    if isinstance(wanted, property):
        is_method = inspect.isroutine(given)
        return f"`{name}` is a method; write `@property` above it, or set a value{_where(given)}" if is_method else ""
    function, plain = _function(given), _function(wanted)
    if isinstance(given, property) or not callable(function):
        return f"`{name}` is {'a property' if isinstance(given, property) else repr(given)[:80]}; write a method"
    inner = inspect.unwrap(function)
    returned = str(getattr(plain, "__annotations__", {}).get("return"))
    if inspect.isasyncgenfunction(function):
        if "ContextManager" in returned:
            return f"`{name}` is an asynchronous generator; write `@asynccontextmanager` above it{_where(function)}"
        if inspect.iscoroutinefunction(plain):
            return f"`async def {name}` yields; its value has to be returned{_where(function)}"
        return f"`async def {name}` is not awaited, so it has to be `def {name}`{_where(function)}"
    if inspect.iscoroutinefunction(plain) and inspect.isfunction(inner) and not inspect.iscoroutinefunction(inner):
        if not any(word in str(inner.__annotations__.get("return")) for word in ("Awaitable", "Coroutine")):
            return f"`def {name}` is awaited, so it has to be `async def {name}`{_where(inner)}"
    elif not inspect.iscoroutinefunction(plain) and inspect.iscoroutinefunction(function):
        return f"`async def {name}` is not awaited, so it has to be `def {name}`{_where(function)}"
    return _parameters(name, given, function, wanted)


def _parameters(name: str, given: object, function: Any, wanted: object) -> str:
    try:
        offered, asked = (_signature(one) for one in (given, wanted))
    except (TypeError, ValueError):
        return ""
    kinds = inspect.Parameter
    flat = [p for p in asked.parameters.values() if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    named = [p for p in asked.parameters.values() if p.kind is kinds.KEYWORD_ONLY]
    for least in (False, True):
        args, keys = (tuple(p.name for p in ps if not least or p.default is kinds.empty) for ps in (flat, named))
        if not _takes(offered, args, dict.fromkeys(keys)) and not _takes(offered, (), dict.fromkeys(args + keys)):
            return f"`{name}{offered}` is called as `{name}{asked}`{_where(function)}"
    return ""


def _takes(signature: inspect.Signature, args: tuple[object, ...], named: dict[str, None]) -> bool:
    try:
        signature.bind(*args, **named)
    except TypeError:
        return False
    return True


def _signature(method: object) -> inspect.Signature:
    """Of a method as it is called, without `self` and without annotations."""
    signature = inspect.signature(_function(method))
    parameters = [
        p.replace(annotation=p.empty, default=p.default if p.default is p.empty else _Default())
        for p in signature.parameters.values()
    ]
    has_self = parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL
    return inspect.Signature(parameters[1:] if has_self and not isinstance(method, staticmethod) else parameters)


class _Default:
    """Stands for any default: a message shows that there is one."""

    def __repr__(self) -> str:
        return "..."


def _function(method: object) -> Callable[..., Any]:
    return cast("Callable[..., Any]", getattr(method, "__func__", None) or getattr(method, "fget", None) or method)


def _where(function: object) -> str:
    code = getattr(function, "__code__", None)
    return f": {code.co_filename}:{code.co_firstlineno}" if code is not None else ""


def _shown(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
