"""Plain values and dotted overrides become frozen dataclasses, and every mistake in them is explained."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

from agentgym.components import SEAMS, ComponentKind, field_types, find, kind_of, name_of
from agentgym.config_docs import Setting, field_docs, type_name
from agentgym.errors import UserError, nearest
from agentgym.yaml import dump_inline, parse_yaml

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

Finder: TypeAlias = Callable[[ComponentKind, str], type]
"""The class of a component by its name or import path; raises UserError when there is none."""

COMMAND_LINE = "command line"


class Origins(str):
    """What to call a recipe of several files and of overrides: errors about a field name the one that sets it."""

    files: Mapping[str, str]
    overridden: frozenset[str]

    def __new__(cls, text: str, files: Mapping[str, str], overridden: Iterable[str] = ()) -> Origins:
        """files: by dotted key, of a field or a section. overridden: the keys that the command line sets."""
        made = super().__new__(cls, text)
        made.files, made.overridden = files, frozenset(overridden)
        return made

    def of(self, key: str) -> str:
        """What sets a field, or the section it is in; else all files."""
        key = key.partition("[")[0].partition(" ")[0]  # an entry of a list, or a key of a mapping
        if key and key not in self.files and self.overrides(key):
            return COMMAND_LINE
        while key and key not in self.files and key not in self.overridden:
            key = key.rpartition(".")[0]
        return COMMAND_LINE if key in self.overridden else self.files.get(key, str(self))

    def overrides(self, section: str) -> bool:
        """Whether the command line sets something in a section; of "", at all."""
        return any(not section or key == section or key.startswith(f"{section}.") for key in self.overridden)


def origin(where: str, key: str) -> str:
    """What to call the source of a field."""
    return where.of(key) if isinstance(where, Origins) else where


def with_overrides(where: str, given: Mapping[str, object], base: Mapping[str, object]) -> str:
    """What to call a recipe of which `base` was read from files, and the rest of `given` is of the command line."""
    if not base:
        return where
    files = where.files if isinstance(where, Origins) else {}
    return Origins(str(where), files, _changed_keys(given, base, ""))


def _changed_keys(given: Mapping[str, object], base: Mapping[str, object], section: str) -> Iterator[str]:
    """What differs from the base, by dotted key: a section's fields one by one."""
    for name, value in given.items():
        key, before = _join(section, str(name)), base.get(name)
        if isinstance(value, Mapping) and (value or name in base) and isinstance(before, (Mapping, str, type(None))):
            of_section = {"name": before} if isinstance(before, str) else before
            yield from _changed_keys(value, of_section or {}, key)
        elif name not in base or (type(value), value) != (type(before), before):
            yield key


def apply_overrides(mapping: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """A copy of the mapping with `section.field=value` set; values are typed as YAML types them.

    `--section.field=value` is read the same way. A component that is given by its name alone becomes a section when
    one of its settings is set; one that gets another name keeps no setting that the mapping has for the one before.
    Raises UserError for anything else than such an assignment.
    """
    result = copy.deepcopy(dict(mapping))
    overrides = list(overrides)
    for override in overrides:
        key, equals, text = override.removeprefix("--").partition("=")
        if equals and key.endswith(".name"):
            _forget_other_component(result, key.split(".")[:-1], parse_yaml(text, where=override))
    for override in overrides:
        key, equals, text = override.removeprefix("--").partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise UserError(f"{override!r} is not an override; write section.field=value, as in trainer.procs=4")
        where = result
        for depth, part in enumerate(parts[:-1], start=1):
            inner = where.setdefault(part, {})
            if inner is None:  # an empty section of the file
                inner = where[part] = {}
            if isinstance(inner, str):
                inner = where[part] = {"name": inner}
            if not isinstance(inner, dict):
                raise UserError(f"{override!r}: {'.'.join(parts[:depth])} is {_shown(inner)}, not a section")
            where = inner
        where[parts[-1]] = parse_yaml(text, where=override)
    return result


def _forget_other_component(mapping: dict[str, object], section: list[str], name: object) -> None:
    """Empty the section in place, if it names another component."""
    where: object = mapping
    for part in section:
        where = where.get(part) if isinstance(where, dict) else None
    if isinstance(where, dict) and where.get("name", name) != name:
        where.clear()


def build(
    cls: type[T],
    mapping: Mapping[str, object],
    where: str = "recipe",
    find_component: Finder = find,
    unused: Collection[str] = (),
) -> T:
    """An object of a config dataclass from plain values, nested dataclasses and all.

    Strict: unknown keys (all are named at once), a missing one or a value of another type raise UserError, as does a
    ValueError of a `__post_init__`. An int is taken for a float, a list for a tuple, nothing else. where: what the
    errors call the source, for example the file. find_component: knows ours and import paths unless another is given.
    unused: fields of the class that no error suggests.
    """
    return _Builder(cls, where, find_component, unused).build_root(cls, mapping)


def to_mapping(config: object) -> dict[str, object]:
    """A config dataclass as plain values (dict, list, str, numbers); `build` makes it again.

    Fields that the object itself names in `unused`, because they mean nothing beside its others, are left out.
    """
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"{config!r} is not an object of a dataclass")
    mapping: dict[str, object] = {}
    for field in dataclasses.fields(config):
        if field.name in getattr(config, "unused", ()):
            continue
        value, kind = getattr(config, field.name), kind_of(field)
        mapping[field.name] = {"name": name_of(kind, value)} | to_mapping(value) if kind else _plain(value)
    return mapping


def describe(cls: type, prefix: str = "", defaults: Mapping[str, object] = {}) -> Iterator[Setting]:
    """Every setting of a config dataclass and of those inside it, in the order of their definition.

    defaults: by dotted key, in place of the class's own; of a component its name.
    """
    for key, owner, field in _fields(cls, prefix, defaults):
        own, kind, text = _default_of(field), kind_of(field), field_docs(owner).get(field.name, "")
        if kind is not None:
            named = f"one of {', '.join(SEAMS[kind].builtin)}, or package.module:Name"
            default = str(defaults.get(key) or name_of(kind, own))
        else:
            named, value = type_name(field_types(owner)[field.name]), defaults.get(key, own)
            default = "" if value is dataclasses.MISSING else dump_inline(_plain(value))
        yield Setting(key=key, type_name=named, default=default, text=text)


def texts_of(cls: type, given: Mapping[str, object]) -> dict[str, str]:
    """What each setting is, by its dotted key. given: a recipe by dotted key, of which components of ours are taken."""
    return {key: field_docs(owner).get(field.name, "") for key, owner, field in _fields(cls, "", given)}


def _fields(
    cls: type, prefix: str, chosen: Mapping[str, object]
) -> Iterator[tuple[str, type, dataclasses.Field[object]]]:
    """The dotted key of every setting, with the class and the field that define it. chosen: names of components."""
    for field in (one for one in dataclasses.fields(cls) if one.init):
        key, kind, section = f"{prefix}{field.name}", kind_of(field), section_of(field_types(cls)[field.name])
        if kind is not None:
            yield f"{key}.name", cls, field
            name = chosen.get(f"{key}.name")
            if name is None:
                yield from _fields(type(_default_of(field)), f"{key}.", chosen)
            elif name in SEAMS[kind].builtin:
                yield from _fields(find(kind, str(name)), f"{key}.", chosen)
        elif section is not None:
            yield from _fields(section, f"{key}.", chosen)
        else:
            yield key, cls, field


def section_of(hint: object) -> type | None:
    """The dataclass of a field that is a section, whether or not it must be there."""
    for one in (hint, *typing.get_args(hint)) if isinstance(hint, types.UnionType) else (hint,):
        if isinstance(one, type) and dataclasses.is_dataclass(one):
            return one
    return None


def _default_of(field: dataclasses.Field[object]) -> object:
    """dataclasses.MISSING when a value is required."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


@dataclass(frozen=True, slots=True)
class _Unknown:
    """A key that no field has. guess: how its error ends; it may be empty. available: of its section."""

    where: str
    named: str
    guess: str
    available: str


class _Builder:
    """Holds what every part of one `build` needs: the root class, the source's name, where components are found."""

    def __init__(self, root: type, where: str, find_component: Finder, unused: Collection[str]) -> None:
        self.root = root
        self.unused = unused
        self.where = where
        self.find_component = find_component
        self.unknown: list[_Unknown] = []

    def build_root(self, cls: type[T], mapping: object) -> T:
        try:
            made = self.build(cls, mapping, "")
        except UserError:
            self.refuse_unknown()  # first: what else is wrong may follow from it
            raise
        self.refuse_unknown()
        return made

    def build(self, cls: type[T], mapping: object, path: str, chosen: str = "") -> T:
        """path: dotted, of this section; empty for the root. chosen: the name of the component."""
        if not isinstance(mapping, Mapping):
            raise self.error(path, f"is a section with fields of its own, but it is given {_shown(mapping)}")
        hints = field_types(cls)
        unused = () if path else self.unused
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init and field.name not in unused}
        for key in mapping:
            if key not in fields:
                self.unknown.append(self.not_a_field(str(key), list(fields), path, chosen))
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in mapping and kind_of(field) is not None:
                values[name] = self.build_component(field, mapping[name], _join(path, name))
            elif name in mapping:
                values[name] = self.convert(hints[name], mapping[name], _join(path, name))
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise self.error(_join(path, name), f"is missing; give a {type_name(hints[name])}")
        try:
            return cls(**values)
        except ValueError as error:
            section = path.rpartition(".")[2]
            named = not section or str(error).startswith(section)
            overridden = isinstance(self.where, Origins) and self.where.overrides(path)
            where = f"{self.where}, {COMMAND_LINE}" if overridden else self.where
            raise UserError(f"{where}: {error}" if named else f"{where}: {path}: {error}") from None

    def build_component(self, field: dataclasses.Field[object], value: object, path: str) -> object:
        """value: a section with `name` and the component's own settings, or the name alone."""
        if not isinstance(value, (str, Mapping)):
            raise self.error(path, f"is a section with a name, or a name; it is given {_shown(value)}")
        settings = {"name": value} if isinstance(value, str) else dict(value)
        kind = kind_of(field)
        assert kind is not None
        name = settings.pop("name", None) or name_of(kind, _default_of(field))
        if not isinstance(name, str):
            raise self.wrong_type(str, name, f"{path}.name")
        try:
            cls = self.find_component(kind, name)
        except UserError as error:
            raise UserError(f"{origin(self.where, f'{path}.name')}: {path}.name: {error}") from error
        if hasattr(cls, "settings_of") and name not in SEAMS[kind].builtin:  # it stands for what the path names
            settings = cls.settings_of(name, settings)
        return self.build(cls, settings, path, chosen=name)

    def convert(self, hint: object, value: object, path: str) -> object:
        if hint is object or hint is typing.Any:
            return value
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            return self.build(hint, value, path)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self.convert_union(hint, arguments, value, path)
        if origin is Literal:
            if any(value == choice and type(value) is type(choice) for choice in arguments):
                return value
            raise self.error(path, f"is {_shown(value)}.{nearest(str(value), map(str, arguments))}")
        if origin in (tuple, list) and isinstance(value, (list, tuple)):
            return self.convert_sequence(origin is tuple, hint, arguments, value, path)
        if origin in (dict, Mapping) and isinstance(value, Mapping):
            key_hint, value_hint = arguments
            return {
                self.convert(key_hint, key, f"{path} (its key)"): self.convert(value_hint, item, _join(path, str(key)))
                for key, item in value.items()
            }
        return self.convert_scalar(hint, value, path)

    def convert_union(self, hint: object, arguments: Sequence[object], value: object, path: str) -> object:
        if value is None and type(None) in arguments:
            return None
        choices = [argument for argument in arguments if argument is not type(None)]
        if len(choices) == 1 and value is not None:
            return self.convert(choices[0], value, path)
        known = len(self.unknown)
        for choice in choices:
            with contextlib.suppress(UserError):
                made = self.convert(choice, value, path)
                if len(self.unknown) == known:
                    return made
            del self.unknown[known:]
        raise self.wrong_type(hint, value, path)

    def convert_sequence(
        self, as_tuple: bool, hint: object, arguments: Sequence[object], value: Sequence[object], path: str
    ) -> object:
        if as_tuple and arguments[-1] is not Ellipsis:
            if len(arguments) != len(value):
                raise self.error(path, f"has {len(value)} entries; it takes {len(arguments)}: {type_name(hint)}")
            hints = list(arguments)
        else:
            hints = [arguments[0]] * len(value)
        items = [self.convert(h, item, f"{path}[{i}]") for i, (h, item) in enumerate(zip(hints, value, strict=True))]
        return tuple(items) if as_tuple else items

    def convert_scalar(self, hint: object, value: object, path: str) -> object:
        if hint is float and isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
        if hint in (bool, str, type(None)) and type(value) is hint:
            return value
        if hint is int and isinstance(value, int) and not isinstance(value, bool):
            return value
        if hint is Path and isinstance(value, str):
            return Path(value)
        raise self.wrong_type(hint, value, path)

    def wrong_type(self, hint: object, value: object, path: str) -> UserError:
        advice = ""
        if typing.get_origin(hint) in (tuple, list) and not isinstance(value, Mapping):
            advice = f"; write it as a list: [{dump_inline(_plain(value))}]"
        elif hint is str and isinstance(value, (int, float, bool)):
            advice = f"; put it in quotes: \"'{value}'\""
        return self.error(path, f"is {_shown(value)}; allowed is {type_name(hint)}{advice}")

    def error(self, path: str, text: str) -> UserError:
        where = origin(self.where, path)
        return UserError(f"{where}: {path} {text}" if path else f"{where}: it {text}")

    def not_a_field(self, key: str, fields: Sequence[str], path: str, chosen: str) -> _Unknown:
        full = _join(path, key)
        guess, _, available = nearest(key, [*fields, "name"] if chosen else fields).partition(" Available:")
        known = [one for one, _, _ in _fields(self.root, "", {}) if one.partition(".")[0] not in self.unused]
        elsewhere = [other for other in known if other.endswith(f".{key}") and other != full]
        if elsewhere:  # the right name in the wrong section is likelier than a misspelling
            guess = f" Did you mean {' or '.join(map(repr, elsewhere))}?"
        elif path:
            guess = guess.replace("Did you mean '", f"Did you mean '{path}.")
        named = repr(full) + (f" of {chosen!r}" if chosen else "")
        return _Unknown(origin(self.where, full), named, guess, f" Available:{available}")

    def refuse_unknown(self) -> None:
        """Raises UserError for the keys that no field has, if there are any."""
        if len(self.unknown) == 1:
            one = self.unknown[0]
            raise UserError(f"{one.where}: there is no field {one.named}.{one.guess}{one.available}")
        if self.unknown:
            lines = [f"\n  {one.where}: {one.named}.{one.guess or one.available}" for one in self.unknown]
            raise UserError(f"there are no such fields:{''.join(lines)}")


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    """A value as an error shows it: with its type's name, and not without end."""
    text = repr(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return "nothing (null)" if value is None else f"{text} ({type(value).__name__})"
