"""Whose fault an error is: names the component, the plugin and distribution that brought it, and the author's line."""

from __future__ import annotations

import functools
import inspect
import sys
from importlib.metadata import EntryPoint, distribution, entry_points, packages_distributions
from types import TracebackType
from typing import cast

from agentgym.components import SEAMS, ComponentKind, name_of
from agentgym.errors import DISTRIBUTION, InfraError, UserError
from agentgym.held_loop import line_of

GROUPS = ("agentgym", "agentgym.commands")


class PluginError(InfraError):
    """Code of a plugin raised what it must not raise; its cause is what it raised.

    source: the component, as `sandbox:NAME`. kind: the class of what was raised. detail: its text, with the author's
    line and the distribution.
    """

    kind: str = ""
    detail: str = ""


class blamed:
    """Around code of a plugin: what it raises becomes a PluginError. UserError and InfraError pass as they are.

    So does all that this library's own components raise. noun: a kind of component, or what it is called, as
    `sandbox`. thing: the component, its class or its factory. name: by which a recipe chooses it; of a component it is
    found. passes: what its contract lets it raise besides.
    """

    __slots__ = ("_name", "_noun", "_passes", "_thing")

    def __init__(self, noun: str, thing: object, name: str = "", *, passes: tuple[type[Exception], ...] = ()) -> None:
        self._noun, self._thing, self._name = noun, thing, name
        self._passes: tuple[type[Exception], ...] = (UserError, InfraError, *passes)

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, Exception | SystemExit) or isinstance(error, self._passes):
            return
        if not _module_of(self._thing).startswith("agentgym."):
            raise plugin_error(self._noun, self._thing, error, self._name) from error


def plugin_error(noun: str, thing: object, error: BaseException, name: str = "") -> PluginError:
    """What `blamed` raises."""
    if noun in SEAMS:
        kind = cast(ComponentKind, noun)
        noun, name = SEAMS[kind].noun, name or name_of(kind, thing)
    found = PluginError(f"the {noun} {name!r} raised {type(error).__name__}: {detail_of(error, thing)}")
    found.source, found.kind = f"{noun.replace(' ', '_')}:{name}", type(error).__name__
    found.detail = detail_of(error, thing)
    return found


def detail_of(error: BaseException, thing: object = None) -> str:
    """The error's text, where its author's code raised it, and the distribution of that code."""
    place = line_of(error)
    text = str(error) or ("it took longer than its limit" if isinstance(error, TimeoutError) else repr(error))
    return text + (f", at {place}" if place else "") + origin_of(thing, " ({})")


def origin_of(thing: object, form: str = "{}") -> str:
    """What brought it, as `plugin 'even' of agentgym-even 1.0`; "" for ours, and for a file of the user's own.

    thing: a function, a class, an object of one, or the name of a module. form: where that is put, unless it is "".
    """
    found = _origin(_module_of(thing))
    return form.format(found) if found else ""


def shown_name(distribution: str) -> str:
    """What messages and recipes call a distribution: its name on the package index, but ours `agentgym`."""
    return "agentgym" if distribution == DISTRIBUTION else distribution


def _module_of(thing: object) -> str:
    if isinstance(thing, functools.partial):
        thing = thing.func
    owner = thing if isinstance(thing, type) or inspect.isroutine(thing) else type(thing)
    return thing if isinstance(thing, str) else str(getattr(owner, "__module__", ""))


@functools.cache
def _origin(module: str) -> str:
    parts = module.split(".")
    if parts[0] in ("agentgym", "builtins"):
        return ""

    def shared(point: EntryPoint) -> int:
        same = [one == other for one, other in zip(parts, point.module.split("."), strict=False)]
        return same.index(False) if False in same else len(same)

    points = {(one.name, one.value): one for group in GROUPS for one in entry_points(group=group) if one.dist}
    most = max(map(shared, points.values()), default=0)
    nearest = [point for point in points.values() if most and shared(point) == most]
    if not nearest:
        file = str(getattr(sys.modules.get(module), "__file__", ""))
        for dist in map(distribution, packages_distributions().get(parts[0], ())):
            if file.startswith(str(dist.locate_file(parts[0]))):  # another one may have a package of this name
                return f"{shown_name(dist.name)} {dist.version}"
        return ""
    brought = nearest[0].dist
    assert brought is not None
    plugins = {point.name for point in nearest}
    of = f"{shown_name(brought.name)} {brought.version}"
    return f"plugin {plugins.pop()!r} of {of}" if len(plugins) == 1 else of
