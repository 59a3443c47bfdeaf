"""Which task folders a path means: one, a folder of them, or what a dataset.toml or a registry.json lists."""

from __future__ import annotations

import json
import logging
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from agentgym.errors import UserError, nearest

log = logging.getLogger(__name__)


def task_paths(path: Path, *, dataset: str = "") -> list[Path]:
    """Sorted by path; those of a file in its order. dataset: NAME or NAME@VERSION of a registry.json.

    Raises UserError for a path without a task, and for listed tasks that are not on this machine.
    """
    if path.is_file() and path.suffix == ".json":
        return _of_registry(path, dataset)
    if path.is_file() and path.name == "dataset.toml":
        return _of_dataset(path)
    if (path / "task.toml").is_file():
        return [path]
    if (path / "dataset.toml").is_file():
        return _of_dataset(path / "dataset.toml")
    if not path.is_dir():
        raise UserError(f"{path} is neither a folder, nor a dataset.toml, nor a registry.json")
    found = list(_below(path))
    if not found:
        raise UserError(f"{path} has no task: a task is a folder with task.toml, instruction.md, environment and tests")
    return found


def chosen(paths: Iterable[Path], patterns: Iterable[str]) -> list[Path]:
    """Those whose folder's name matches a pattern. Raises UserError for a pattern that matches none."""
    known = list(paths)
    patterns = list(patterns)
    for pattern in patterns:
        if not any(fnmatchcase(path.name, pattern) for path in known):
            raise UserError(f"tasks has {pattern!r}, which no task matches.{nearest(pattern, (p.name for p in known))}")
    return [path for path in known if not patterns or any(fnmatchcase(path.name, one) for one in patterns)]


def check_broken(environment: str, what: str, broken: Mapping[str, str], count: int, *, go_on: bool) -> None:
    """Warn of each that is left out. Raises UserError unless others are played. what, count: of all, broken or not."""
    if broken and not go_on:
        name, fault = next(iter(broken.items()))
        others = ", or leave them out with --env.options.skip_broken true" if len(broken) < count else ""
        raise UserError(
            f"{environment}: {len(broken)} of {count} {what} can't be played, the first is {name}: {fault}. "
            f"Fix them{others}"
        )
    for name, fault in broken.items():
        log.warning("%s: %s is left out: %s", environment, name, fault)


def _below(path: Path) -> Iterator[Path]:
    for child in sorted(path.iterdir()):
        if (child / "task.toml").is_file():
            yield child
        elif child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
            yield from _below(child)


def _of_dataset(path: Path) -> list[Path]:
    try:
        listed = tomllib.loads(path.read_text())
        names = [str(one["name"]) for one in listed["tasks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a dataset.toml with [[tasks]] that have a name: {error!r:.200}") from error
    here = {_name_of(one): one for one in _below(path.parent)}
    by_folder = {one.name: one for one in here.values()}
    found = [here.get(name) or by_folder.get(name.rpartition("/")[2]) for name in names]
    missing = [name for name, one in zip(names, found, strict=True) if one is None]
    if missing:
        raise UserError(f"{path} lists {', '.join(missing[:5])}, of which there is no folder below {path.parent}")
    return [one for one in found if one is not None]


def _name_of(folder: Path) -> str:
    try:
        return str(tomllib.loads((folder / "task.toml").read_text())["task"]["name"])
    except (ValueError, KeyError, TypeError, OSError):
        return folder.name


def _of_registry(path: Path, dataset: str) -> list[Path]:
    try:
        found = json.loads(path.read_text())
        by_name: dict[str, Any] = {f"{one['name']}@{one['version']}": one["tasks"] for one in found}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a registry.json, a list of data sets: {error!r:.200}") from error
    names = [name for name in by_name if not dataset or dataset in (name, name.rpartition("@")[0])]
    if len(names) != 1:
        what = (
            f"has no data set {dataset!r}" if dataset and not names else "has several data sets; name one by `dataset`"
        )
        raise UserError(f"{path} {what}.{nearest(dataset, by_name)}")
    paths = []
    for task in by_name[names[0]]:
        at = path.parent / str(task.get("path", ""))
        if not (at / "task.toml").is_file():
            where = f" It is in {task['git_url']}: clone that beside the file." if task.get("git_url") else ""
            raise UserError(f"{path} lists task {task.get('name')!r}, but there is no {at / 'task.toml'}.{where}")
        paths.append(at)
    return paths
