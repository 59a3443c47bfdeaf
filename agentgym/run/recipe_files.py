"""Recipe files: each may extend others, and several are read as one, the later over the earlier."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentgym.config import Origins
from agentgym.errors import UserError
from agentgym.run.layers import with_our_names
from agentgym.run.shipped_recipes import find_recipe, shipped_recipe
from agentgym.yaml import read_yaml

EXTENDS = "extends"
REPLACED = ("rewards",)  # sections that are never merged: another environment has other rewards


def read_recipe_files(paths: Sequence[str | Path], command: str = "train") -> tuple[dict[str, object], str]:
    """What the files set together, and what to call them in errors, which names the file of each field.

    paths: of files, or names of shipped recipes. command: as `find_recipe` takes it.
    Raises UserError for a file that is missing or not valid, and for one that extends itself.
    """
    mapping: dict[str, object] = {}
    origins: dict[str, str] = {}
    files = [find_recipe(path, command) for path in paths]
    for file in files:
        _add(mapping, origins, file, ())
    if not files:
        return {}, "recipe"
    return mapping, Origins(", ".join(map(str, files)), origins)


def _add(mapping: dict[str, object], origins: dict[str, str], path: Path, within: tuple[Path, ...]) -> None:
    """Lay a file over what was read so far, below it what it extends."""
    if any(path.resolve() == outer.resolve() for outer in within):
        chain = " extends ".join(map(str, (*within, path)))
        raise UserError(f"a recipe can't extend itself: {chain}")
    given = _read(path, within)
    for base in _extended(given.pop(EXTENDS, None), path):
        _add(mapping, origins, _base(base, path), (*within, path))
    ours = with_our_names(given, str(path))
    merge(mapping, ours)
    for key, value in ours.items():
        for field in value if isinstance(value, Mapping) else ():
            origins[f"{key}.{field}"] = str(path)
        origins[key] = str(path)


def _base(name: str, path: Path) -> Path:
    """The file that a recipe extends: as seen from the recipe, or else the shipped one of that name."""
    beside = path.parent / name
    return beside if beside.exists() else shipped_recipe(name) or beside


def _read(path: Path, within: tuple[Path, ...]) -> dict[str, object]:
    try:
        return read_yaml(path)
    except UserError as error:
        if not within:
            raise
        raise UserError(f"{within[-1]}: {EXTENDS}: {error}") from error


def _extended(value: object, path: Path) -> list[str]:
    names = [value] if isinstance(value, str) else value
    if names is None:
        return []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UserError(
            f"{path}: {EXTENDS} is {value!r}; give a recipe's file, as seen from this one, or a list of files"
        )
    return names


def merge(mapping: dict[str, object], over: Mapping[str, object]) -> None:
    """Lay fields over those of a recipe, in place, section by section.

    A component or environment of another name brings no settings of the one before it; nor do other rewards.
    """
    for key, value in over.items():
        before = mapping.get(key)
        if isinstance(value, Mapping) and isinstance(before, dict) and key not in REPLACED:
            if "name" in value and value["name"] != before.get("name"):
                mapping[key] = copy.deepcopy(dict(value))
            else:
                merge(before, value)
        elif value is not None or not isinstance(before, dict):  # an empty section changes nothing
            mapping[key] = copy.deepcopy(value)


def extended_files(path: Path) -> list[Path]:
    """The files that a recipe extends, and those that they extend."""
    direct = [_base(base, path) for base in _extended(_read(path, ()).get(EXTENDS), path)]
    return [file for base in direct for file in (base, *extended_files(base))]
