"""YAML 1.2 read and written: `3e-4` is a number, `no` is a string, and a key that is defined twice is an error."""

from __future__ import annotations

import copy
import functools
import io
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from agentgym.errors import UserError, nearest

if TYPE_CHECKING:
    from ruamel.yaml import YAML

LINE_BREAKS = "\x85\u2028\u2029"
_PARSING = threading.Lock()  # the parser keeps the state of one text: the view reads in several threads
_PLAIN_TAGS = ("timestamp", "value", "merge")  # of YAML 1.1: scalars like 2026-01-01, = and << are strings


def flat(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The fields of a config by dotted key; an empty section counts as a field."""
    found: dict[str, object] = {}
    for key, value in config.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return found


def value_at(config: Mapping[str, object], key: str) -> object:
    """A field of a config by its dotted key; None where there is none."""
    value: object = config
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def read_yaml(path: str | Path) -> dict[str, object]:
    """Read a config file. Raises UserError when it is missing, is not valid YAML or does not hold a mapping."""
    return _mapping(_text(path), path)


def read_documents(path: str | Path) -> list[dict[str, object]]:
    """Read the mappings of a file, which `---` separates. Raises UserError as `read_yaml` does."""
    parts = re.split(r"^---\s*$", _text(path), flags=re.MULTILINE)
    return [found for part in parts if (found := _mapping(part, path))]


def _text(path: str | Path) -> str:
    path = Path(path)
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        folder = path.parent
        found = [file.name for file in folder.glob("*.y*ml")] if folder.is_dir() else []
        hint = nearest(path.name, found) if folder.is_dir() else f" There is no folder {str(folder)!r} either."
        raise UserError(f"no config file {str(path)!r}.{hint}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"can't read the config file {str(path)!r}: {error}") from None


def _mapping(text: str, path: str | Path) -> dict[str, object]:
    value = parse_yaml(text, where=str(path))
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(
            f"{path}: a config file holds a mapping of names to values; this is {value!r:.80} ({type(value).__name__})"
        )
    return value


def parse_yaml(text: str, *, where: str) -> object:
    """The value of a YAML text: builtin types only. Raises UserError, which names `where` and the line."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return copy.deepcopy(_load(text))
    except MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark is not None else ""
        context = f" {error.context}" if error.context else ""
        raise UserError(f"{where}{line}: this is not valid YAML: {error.problem}{context}") from None
    except (YAMLError, ValueError) as error:
        raise UserError(f"{where}: this is not valid YAML: {error}") from None
    except RecursionError:
        raise UserError(f"{where}: it is nested too deep for a config file") from None


_SECTION = re.compile(r"^(?=[A-Za-z]\w*:(?:\s|$))", re.MULTILINE)


def _load(text: str) -> object:
    """Section by section where that is the same: those of many saved configs are alike, and each is parsed once."""
    from ruamel.yaml.error import YAMLError

    sections = _SECTION.split(text)[1:]
    if "".join(sections) == text and "\n..." not in text:
        try:
            parts = [cast("dict[str, object]", _load_once(section)) for section in sections]
        except (YAMLError, ValueError, RecursionError):
            pass  # an alias of another section, or a mistake, whose line only the whole text gives
        else:
            found = {key: value for part in parts for key, value in part.items()}
            if len(found) == len(sections) > 0:  # no key is defined twice
                return found
    return _load_once(text)


@functools.lru_cache(maxsize=512)
def _load_once(text: str) -> object:
    """A command reads a recipe and the files it extends several times, and the parser takes most of that time."""
    with _PARSING:
        value: object = _reader().load(text)
    return value


def dump_yaml(value: object, *, blocks: bool = False) -> str:
    """YAML of plain values; `parse_yaml` reads it back as the same values. blocks: texts of several lines keep them."""
    return _dump(value, flow=False, blocks=blocks)


def dump_inline(value: object) -> str:
    """A value as it is written in one line, for messages and lists."""
    return _dump([value], flow=True).strip()[1:-1]


def _dump(value: object, *, flow: bool, blocks: bool = False) -> str:
    from ruamel.yaml import YAML

    yaml = YAML(typ="safe", pure=True)
    if blocks:
        yaml.Representer = _with_blocks()
    yaml.default_flow_style = flow
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None
    yaml.width = 1 << 30  # a folded key would not be read back
    yaml.representer.ignore_aliases = lambda data: True  # `&id001` does not help a reader
    stream = io.StringIO()
    yaml.dump(value, stream)
    if any(character in stream.getvalue() for character in LINE_BREAKS):
        yaml.allow_unicode = False  # written as they are, they would be read as spaces
        stream = io.StringIO()
        yaml.dump(value, stream)
    return stream.getvalue()


@functools.cache
def _with_blocks() -> type:
    from ruamel.yaml.representer import SafeRepresenter

    class Representer(SafeRepresenter):
        def represent_text(self, text: str) -> Any:
            return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)

    Representer.add_representer(str, Representer.represent_text)
    return Representer


@functools.cache
def _reader() -> YAML:
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import ConstructorError, SafeConstructor

    class Constructor(SafeConstructor):
        def check_mapping_key(
            self, node: Any, key_node: Any, mapping: dict[object, object], key: object, value: object
        ) -> bool:
            if key in mapping:
                problem = f"the key {key!r} is defined twice"
                raise ConstructorError(None, None, problem, key_node.start_mark)
            return True

    for tag in _PLAIN_TAGS:
        Constructor.add_constructor(f"tag:yaml.org,2002:{tag}", Constructor.construct_yaml_str)
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = Constructor
    return yaml
