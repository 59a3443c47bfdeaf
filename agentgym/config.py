"""Config files and dotted overrides become frozen dataclasses, and every mistake in them is explained.

The YAML read and written here is typed as YAML 1.2 does it: `3e-4` is a number, `no` is a string, and a key
that stands twice is an error.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from agentgym.errors import UserError, nearest

if TYPE_CHECKING:
    import yaml
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_RESOLVERS = (  # tag, pattern, first characters: the scalars of YAML 1.2's core schema
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^[-+]?[0-9][0-9_]*$|^0x[0-9a-fA-F]+$", list("-+0123456789")),
    (
        "float",
        r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?$"
        r"|^[-+]?\.(?:inf|Inf|INF)$|^\.(?:nan|NaN|NAN)$",
        list("-+.0123456789"),
    ),
    ("merge", r"^(?:<<)$", ["<"]),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldInfo:
    """One setting: its dotted key, its type as a person reads it, its default as YAML would write it."""

    key: str
    type_name: str
    default: str


def read_yaml(path: str | Path) -> dict[str, object]:
    """Read a config file. Raises UserError when it is missing, is no YAML, or is no mapping."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent
        found = [file.name for file in folder.glob("*.y*ml")] if folder.is_dir() else []
        hint = (
            nearest(path.name, found) if folder.is_dir() else f" Neither is there a folder {str(folder)!r}."
        )
        raise UserError(f"no config file {str(path)!r}.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read the config file {str(path)!r}: {error}") from None
    value = parse_yaml(text, where=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{path}: a config file holds a mapping of names to values; this is {_shown(value)}")
    return value


def parse_yaml(text: str, *, where: str) -> object:
    """The value of a YAML text. Raises UserError, which names `where`."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())  # a SafeLoader: builtin values only
    except yaml.YAMLError as error:
        raise UserError(f"{where}: this is no YAML: {error}") from None


def to_yaml(value: object) -> str:
    """YAML of a mapping or a config dataclass; `parse_yaml` reads it back as the same values."""
    import yaml

    plain = to_mapping(value) if dataclasses.is_dataclass(value) else value
    text = str(yaml.dump(plain, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100))
    if any(
        break_ in text for break_ in "\x85\u2028\u2029"
    ):  # written as they are, they would be read as spaces
        return str(yaml.dump(plain, Dumper=_dumper(), sort_keys=False, width=100))
    return text


def apply_overrides(mapping: Mapping[str, object], overrides: Iterable[str]) -> dict[str, object]:
    """A copy of the mapping with `section.field=value` set; values are typed as YAML types them.

    `--section.field=value` is read the same way. Raises UserError for what is no such assignment.
    """
    result = copy.deepcopy(dict(mapping))
    for override in overrides:
        key, equals, text = override.removeprefix("--").partition("=")
        parts = key.split(".")
        if not equals or not all(parts):
            raise UserError(f"{override!r} is no override; write section.field=value, as in trainer.procs=4")
        place = result
        for depth, part in enumerate(parts[:-1], start=1):
            inner = place.setdefault(part, {})
            if inner is None:  # an empty section of the file
                inner = place[part] = {}
            if not isinstance(inner, dict):
                raise UserError(f"{override!r}: {'.'.join(parts[:depth])} is {_shown(inner)}, not a section")
            place = inner
        place[parts[-1]] = parse_yaml(text, where=override)
    return result


def build(cls: type[T], mapping: Mapping[str, object], where: str = "recipe") -> T:
    """An object of a config dataclass from plain values, nested dataclasses and all.

    Strict: an unknown key, a missing one or a value of another type raises UserError, as does a ValueError
    of a `__post_init__`. An int is taken for a float, a list for a tuple, nothing else. where: what the
    errors call the source, for example the file.
    """
    return _Builder(cls, where).build(cls, mapping, "")


def to_mapping(config: object) -> dict[str, object]:
    """A config dataclass as plain values (dict, list, str, numbers); `build` makes it again."""
    if not dataclasses.is_dataclass(config) or isinstance(config, type):
        raise TypeError(f"{config!r} is no dataclass object")
    return {field.name: _plain(getattr(config, field.name)) for field in dataclasses.fields(config)}


def describe(cls: type) -> list[FieldInfo]:
    """Every setting of a config dataclass and of those inside it, in the order of their definition."""
    return list(_describe(cls, ""))


def _describe(cls: type, prefix: str) -> Iterator[FieldInfo]:
    hints = _hints(cls)
    for field in dataclasses.fields(cls):
        hint, key = hints[field.name], f"{prefix}{field.name}"
        if dataclasses.is_dataclass(hint):
            yield from _describe(typing.cast(type, hint), f"{key}.")
        else:
            yield FieldInfo(key=key, type_name=_type_name(hint), default=_default_text(field))


def _default_text(field: dataclasses.Field[object]) -> str:
    if field.default is not dataclasses.MISSING:
        return _inline(_plain(field.default))
    if field.default_factory is not dataclasses.MISSING:
        return _inline(_plain(field.default_factory()))
    return "(required)"


def _inline(value: object) -> str:
    import yaml

    text = yaml.dump([value], Dumper=_dumper(), default_flow_style=True, allow_unicode=True, width=10_000)
    return str(text).strip()[1:-1]


class _Builder:
    """Holds what every error of one `build` needs: the root class and the source's name."""

    def __init__(self, root: type, where: str) -> None:
        self.root = root
        self.where = where

    def build(self, cls: type[T], mapping: object, path: str) -> T:
        """path: dotted, of this section; empty for the root."""
        if not isinstance(mapping, Mapping):
            raise self.error(path, f"is a section with fields of its own, but it is given {_shown(mapping)}")
        hints = _hints(typing.cast(type, cls))
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        for key in mapping:
            if key not in fields:
                raise self.unknown(str(key), list(fields), path)
        values: dict[str, object] = {}
        for name, field in fields.items():
            if name in mapping:
                values[name] = self.convert(hints[name], mapping[name], _join(path, name))
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                raise self.error(_join(path, name), f"is missing; give a {_type_name(hints[name])}")
        try:
            return cls(**values)
        except ValueError as error:
            section = path.rpartition(".")[2]
            named = not section or str(error).startswith(section)
            raise UserError(f"{self.where}: {error}" if named else f"{self.where}: {path}: {error}") from None

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
                self.convert(key_hint, key, f"{path} (its key)"): self.convert(
                    value_hint, item, _join(path, str(key))
                )
                for key, item in value.items()
            }
        if isinstance(hint, type) and issubclass(hint, enum.Enum):
            for member in hint:
                if member.value == value:
                    return member
            raise self.error(path, f"is {_shown(value)}.{nearest(str(value), [str(m.value) for m in hint])}")
        return self.convert_scalar(hint, value, path)

    def convert_union(self, hint: object, arguments: Sequence[object], value: object, path: str) -> object:
        if value is None and type(None) in arguments:
            return None
        choices = [argument for argument in arguments if argument is not type(None)]
        if len(choices) == 1 and value is not None:
            return self.convert(choices[0], value, path)
        for choice in choices:
            try:
                return self.convert(choice, value, path)
            except UserError:
                continue
        raise self.wrong_type(hint, value, path)

    def convert_sequence(
        self, as_tuple: bool, hint: object, arguments: Sequence[object], value: Sequence[object], path: str
    ) -> object:
        if as_tuple and arguments[-1] is not Ellipsis:
            if len(arguments) != len(value):
                raise self.error(
                    path, f"has {len(value)} entries; it takes {len(arguments)}: {_type_name(hint)}"
                )
            hints = list(arguments)
        else:
            hints = [arguments[0]] * len(value)
        items = [
            self.convert(h, item, f"{path}[{i}]")
            for i, (h, item) in enumerate(zip(hints, value, strict=True))
        ]
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
            advice = f"; write it as a list: [{_inline(_plain(value))}]"
        elif hint is str and isinstance(value, (int, float, bool)):
            advice = f"; put it in quotes: \"'{value}'\""
        return self.error(path, f"is {_shown(value)}; allowed is {_type_name(hint)}{advice}")

    def error(self, path: str, text: str) -> UserError:
        return UserError(f"{self.where}: {path} {text}" if path else f"{self.where}: it {text}")

    def unknown(self, key: str, fields: Sequence[str], path: str) -> UserError:
        full = _join(path, key)
        hint = nearest(key, fields)
        elsewhere = [info.key for info in describe(self.root) if info.key.endswith(f".{key}")]
        if elsewhere:  # the right name in the wrong section is likelier than a misspelling
            hint = f" Did you mean {' or '.join(map(repr, elsewhere))}?" + hint[hint.index(" There is:") :]
        elif path:
            hint = hint.replace("Did you mean '", f"Did you mean '{path}.")
        return UserError(f"{self.where}: there is no field {full!r}.{hint}")


@functools.cache
def _hints(cls: type) -> dict[str, object]:
    """The field types; Json, which refers to itself, is taken as any value."""
    return typing.get_type_hints(cls, localns={"Json": object})


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_mapping(value)
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return value.value
    return str(value) if isinstance(value, Path) else value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: object) -> str:
    """A value as an error shows it: with its type's name, and not without end."""
    text = repr(value)
    text = text if len(text) <= 80 else f"{text[:77]}..."
    return "nothing (null)" if value is None else f"{text} ({type(value).__name__})"


def _type_name(hint: object) -> str:
    """A type as a person reads it: `int or null`, `one of auto, cpu`, `list of str`."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is object or hint is typing.Any:
        return "any value"
    if hint is type(None):
        return "null"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type_name(argument) for argument in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {', '.join(map(_type_name, arguments))}"
    if origin in (tuple, list):
        return f"list of {_type_name(arguments[0])}"
    if origin in (dict, Mapping):
        return f"mapping of {_type_name(arguments[0])} to {_type_name(arguments[1])}"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return f"one of {', '.join(str(member.value) for member in hint)}"
    return hint.__name__ if isinstance(hint, type) else str(hint)


@functools.cache
def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  pyyaml's own, made anew

        def construct_mapping(
            self, node: yaml.MappingNode, deep: bool = False
        ) -> dict[typing.Hashable, object]:
            seen: set[str] = set()
            for key_node, _ in node.value:
                if key_node.tag != "tag:yaml.org,2002:merge" and key_node.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {key_node.value!r} stands here twice", key_node.start_mark
                    )
                seen.add(str(key_node.value))
            return dict(super().construct_mapping(node, deep))

        def construct_decimal(self, node: yaml.ScalarNode) -> int:
            text = str(node.value).replace("_", "")
            return int(text, 16) if text.startswith("0x") else int(text)  # 010 is ten, as in YAML 1.2

    for tag, pattern, first in _RESOLVERS:
        Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), first)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_decimal)
    return Loader


@functools.cache
def _dumper() -> type[yaml.SafeDumper]:
    import yaml

    class Dumper(yaml.SafeDumper):
        """Quotes what `_loader` would read as something else than a string."""

        yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  pyyaml's own, made anew

        def ignore_aliases(self, data: object) -> bool:
            return True  # `&id001` is no help to a reader

    for tag, pattern, first in _RESOLVERS:
        Dumper.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(pattern), first)
    return Dumper
