"""The folders that were given, and the runs in them. Nothing outside of them is read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgym.errors import UserError
from agentgym.runs.folder import RunFolder
from agentgym.tables.problems import Problem

DEFAULTS = ("runs", "evals")


def cache_folder() -> Path:
    """The cache folder for what is derived from runs and kept outside of them."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "agentgym" / "view"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A folder of runs, or one run (`only`: its name). path: resolved."""

    key: str
    path: Path
    only: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLocation:
    """A run in a root. id: `ROOT:NAME`, as links name it."""

    root: Root
    name: str

    @property
    def id(self) -> str:
        return f"{self.root.key}:{self.name}"

    @property
    def path(self) -> Path:
        return self.root.path / self.name

    @property
    def folder(self) -> RunFolder:
        return RunFolder(self.path, None)


class Roots:
    """What may be read."""

    def __init__(self, roots: Iterable[Root]) -> None:
        self.roots = tuple(roots)

    @classmethod
    def of(cls, given: Iterable[str | Path]) -> Roots:
        """Folders of runs, or runs themselves; without any `runs` and `evals`, those that are there.

        Raises UserError for what is no folder.
        """
        paths = [Path(one) for one in given]
        if not paths:
            paths = [Path(name) for name in DEFAULTS if Path(name).is_dir()]
            if not paths:
                raise UserError(
                    "there is neither a folder 'runs' nor 'evals' here; give the folder that holds the runs: "
                    "agentgym view PATH"
                )
        roots: list[Root] = []
        for path in paths:
            if not path.is_dir():
                raise UserError(f"no folder {str(path)!r}; give a run, or the folder that holds the runs")
            whole = path.resolve()
            if any(whole == root.path / root.only for root in roots):
                continue
            is_run = (whole / "status.json").is_file()
            location = whole.parent if is_run else whole
            key = _free_key(location.name, {root.key for root in roots})
            roots.append(Root(key=key, path=location, only=whole.name if is_run else ""))
        return cls(roots)

    def locations(self) -> Iterator[RunLocation]:
        """All runs, in no order. A link that leads out of its root is none."""
        for root in self.roots:
            for name in [root.only] if root.only else _folders(root.path):
                if (location := _checked(root, name)) is not None:
                    yield location

    def find(self, run: str) -> RunLocation:
        """Raises Problem for an id that no run has."""
        key, _, name = run.partition(":")
        for root in self.roots:
            allowed = root.key == key and (not root.only or root.only == name)
            if allowed and (location := _checked(root, name)) is not None:
                return location
        raise Problem.unknown("run", run, sorted(location.id for location in self.locations()))


def inside(folder: Path, name: str) -> Path | None:
    """The path of an entry of a folder; None for a name that is none, or leads out of it by a link."""
    if not name or name in (".", "..") or any(c in name for c in "/\\\0"):
        return None
    path = folder / name
    try:
        return path if path.resolve().is_relative_to(folder.resolve()) else None
    except (OSError, RuntimeError, ValueError):  # a circle of links, a name that is too long
        return None


def _checked(root: Root, name: str) -> RunLocation | None:
    path = inside(root.path, name)
    if path is None:
        return None
    try:
        return RunLocation(root=root, name=name) if (path / "status.json").is_file() else None
    except OSError:
        return None


def _folders(path: Path) -> list[str]:
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []


def _free_key(name: str, taken: set[str]) -> str:
    key = base = re.sub(r"[^\w.-]", "-", name) or "root"
    number = 1
    while key in taken:
        number += 1
        key = f"{base}-{number}"
    return key
