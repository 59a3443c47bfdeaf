"""The recipes that ship with the package, by name: `qwen3_1.7b`, `presets/gpus/eight`; apps/ in a checkout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from agentgym.errors import UserError, nearest

_PACKAGE = Path(__file__).parents[1]
FOLDER = next((one for one in (_PACKAGE / "apps", _PACKAGE.parent / "apps") if one.is_dir()), _PACKAGE / "apps")
"""Of an installed package its own copy, which its wheel has."""
_SUFFIX = ".yaml"


def shipped_recipes() -> Mapping[str, Path]:
    """All of them, by their paths without suffix."""
    files = sorted(FOLDER.glob(f"**/*{_SUFFIX}"), key=lambda path: (path.parent, path.name))
    return {path.relative_to(FOLDER).as_posix().removesuffix(_SUFFIX): path for path in files}


def shipped_recipe(name: str, command: str = "train") -> Path | None:
    """The shipped recipe of that name, or None.

    name: the end of its path, with or without suffix, as `qwen3_1.7b` or `gpus/eight`. command: of the recipes of one
    name, `sft` takes that for fine-tuning and others that for GRPO.
    Raises UserError for a name that several recipes have.
    """
    name = name.removeprefix("apps/").removesuffix(_SUFFIX)
    known = shipped_recipes()
    found = [one for one in known if one == name or one.endswith(f"/{name}")]
    preferred = f"{'sft' if command == 'sft' else 'grpo'}/{name}"
    if preferred in found:
        return known[preferred]
    if len(found) > 1:
        raise UserError(f"several shipped recipes are called {name!r}; give one of {', '.join(found)}")
    return known[found[0]] if found else None


def find_recipe(given: str | Path, command: str = "train") -> Path:
    """The file of that path, or else the shipped recipe of that name. A missing file is for the reader to report.

    Raises UserError for a name that is neither, and for a folder of recipes. command: as `shipped_recipe` takes it.
    """
    path = Path(given)
    if path.is_file():
        return path
    if found := shipped_recipe(path.as_posix(), command):
        return found
    if path.suffix in (".yaml", ".yml") or path.exists():
        return path
    name = path.as_posix().removeprefix("apps/")
    known = shipped_recipes()
    if inside := [one for one in known if f"/{name}/" in f"/{one}"]:
        raise UserError(f"{str(given)!r} is a folder of shipped recipes; give one of {', '.join(inside)}")
    names = known if "/" in name else {one.rpartition("/")[2] for one in known}
    raise UserError(f"no config file or shipped recipe {str(given)!r}.{nearest(name, names)}")
