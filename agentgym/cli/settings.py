"""The settings of a recipe as people look them up: a section, a component, an environment's options, a word."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from agentgym.commands.shell import Shell
from agentgym.commands.text import wrap
from agentgym.components import SEAMS, ComponentKind, field_types, kind_of
from agentgym.config import describe, section_of
from agentgym.config_docs import Setting, field_docs, options_of
from agentgym.errors import UserError, nearest
from agentgym.hooks import PluginRegistry
from agentgym.import_path import import_class
from agentgym.models.defaults import KEYS
from agentgym.recipe import Recipe
from agentgym.tables.changeable import TABLE

CAN_CHANGE = {one.key for one in TABLE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Settings that belong together. key: how to ask for them. more: other keys to ask for, with a line on each."""

    key: str
    text: str = ""
    settings: Sequence[Setting] = ()
    more: Mapping[str, str] = field(default_factory=dict)


def sections(cls: type = Recipe, prefix: str = "") -> Iterator[tuple[str, str, ComponentKind | None]]:
    """Every section of a recipe, those inside others too: its key, what it is, and the kind of a component's."""
    for one in dataclasses.fields(cls):
        key, kind = f"{prefix}{one.name}", kind_of(one)
        inner = section_of(field_types(cls)[one.name]) if kind is None else None
        if kind is not None or inner is not None or not prefix:
            yield key, field_docs(cls).get(one.name, ""), kind
        if inner is not None:
            yield from sections(inner, f"{key}.")


def look_up(key: str, registry: PluginRegistry) -> list[Group]:
    """What to show for `rollout`, `loop.steps`, `loss.gspo`, `loss.my.module:Loss`, `env.math`, `sandbox.docker`, or a
    word that settings mention. Raises UserError where there is nothing."""
    if not key:
        return [Group(key="", more={name: text for name, text, _ in sections() if "." not in name})]
    section, _, name = key.partition(".")
    if section == "env" and (":" in name or name in registry.names("environments")):
        return [environment(name, registry)]
    if section == "sandbox" and name in registry.names("sandboxes"):
        return [sandbox(name, registry)]
    for path, _, kind in sections():
        if kind is not None and key.startswith(f"{path}."):
            name, _, leaf = key.removeprefix(f"{path}.").partition(".")
            if ":" in key or name in component_names(kind, registry):
                found = component(path, kind, key.removeprefix(f"{path}.") if ":" in key else name, registry)
                settings = [one for one in found.settings if leaf in ("", one.key.removeprefix(f"{path}."))]
                return [found if ":" in key else dataclasses.replace(found, key=key, settings=settings)]
    if found_inside := _inside(key, registry):
        return [found_inside]
    if mentioned := [*_mentioning(key, every_group(registry))]:
        return mentioned
    known = [one.key for one in describe(Recipe)] + [name for name, _, _ in sections()]
    raise UserError(f"no setting mentions {key!r}.{nearest(key, known).partition(' Available')[0]}")


def _inside(key: str, registry: PluginRegistry) -> Group | None:
    settings = [one for one in describe(Recipe) if one.key == key or one.key.startswith(f"{key}.")]
    if not settings:
        return None
    of_section = [(text, kind) for path, text, kind in sections() if path == key]
    text, kind = of_section[0] if of_section else ("", None)
    more = {group.key: group.text for group in choices(key, kind, registry)}
    return Group(key=key, text="" if settings[0].key == key else text, settings=settings, more=more)


def _mentioning(word: str, groups: Iterable[Group]) -> Iterator[Group]:
    """The sections with settings that mention it; what several components have is with the first."""
    seen: set[tuple[str, str]] = set()
    for group in groups:
        found = [one for one in group.settings if word.lower() in f"{one.key} {one.text}".lower()]
        new = [one for one in found if (one.key, one.text) not in seen]
        seen |= {(one.key, one.text) for one in new}
        if new:
            yield dataclasses.replace(group, settings=new)


def every_group(registry: PluginRegistry) -> Iterator[Group]:
    """The recipe's sections, then every component of ours and of plugins, environments and sandboxes."""
    for key in (one.name for one in dataclasses.fields(Recipe)):
        if group := _inside(key, registry):
            yield dataclasses.replace(group, more={})
    for path, _, kind in sections():
        yield from choices(path, kind, registry)


def choices(path: str, kind: ComponentKind | None, registry: PluginRegistry) -> Iterator[Group]:
    """What may be chosen in a section: components, environments or sandboxes. One that is broken says why."""
    names: Sequence[str] = ()
    make: Callable[[str, PluginRegistry], Group] = environment if path == "env" else sandbox
    if kind is not None:
        names, make = component_names(kind, registry), partial(component, path, kind)
    elif path in ("env", "sandbox"):
        names = registry.names("environments" if path == "env" else "sandboxes")
    for name in names:
        try:
            yield make(name, registry)
        except UserError as error:
            yield Group(key=f"{path}.{name}", text=f"unavailable: {error}")


def component_names(kind: ComponentKind, registry: PluginRegistry) -> list[str]:
    return list(dict.fromkeys([*SEAMS[kind].builtin, *registry.names(kind)]))


def component(path: str, kind: ComponentKind, name: str, registry: PluginRegistry) -> Group:
    cls = registry.component(kind, name)
    return Group(key=f"{path}.{name}", text=summary(cls), settings=[*describe(cls, f"{path}.")])


def environment(name: str, registry: PluginRegistry) -> Group:
    factory = registry.environment(name)
    return Group(key=f"env.{name}", text=summary(factory), settings=_below("env.options", options_of(factory)))


def sandbox(name: str, registry: PluginRegistry) -> Group:
    path = registry.sandboxes()[name].config
    options = _below("sandbox.options", describe(import_class(path, "a dataclass", object))) if path else []
    return Group(key=f"sandbox.{name}", settings=options)


def _below(section: str, options: Iterable[Setting]) -> list[Setting]:
    return [dataclasses.replace(one, key=f"{section}.{one.key}") for one in options]


def summary(thing: object) -> str:
    """The first paragraph of its docstring, in one line; nothing for the signature that a dataclass has instead."""
    text = " ".join((getattr(thing, "__doc__", None) or "").strip().partition("\n\n")[0].split())
    return "" if text.startswith(f"{getattr(thing, '__name__', '')}(") else text.rstrip(":")


def setting_lines(settings: Iterable[Setting], shell: Shell) -> list[str]:
    """Each with its type and default, and what it is below."""
    lines = []
    for one in settings:
        default = "from the model" if one.key in KEYS else one.default
        of = f"default {default}" if default else "required"
        lines.append(
            f"  {shell.paint.cyan(one.key)}: {one.type_name} ({of})" if one.type_name else f"  {one.key} ({of})"
        )
        lines += [wrap(meaning(one), shell.width, indent="      ")] if one.text else []
    return lines


def meaning(one: Setting) -> str:
    """What a setting is, and whether it can change while a run goes on."""
    return f"{one.text} Can change in a running run." if one.key in CAN_CHANGE else one.text
