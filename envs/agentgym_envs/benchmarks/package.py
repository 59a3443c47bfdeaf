"""A benchmark's package as its user has it, installed or in a folder: found, imported in part, and hashed.

Nothing of a benchmark is kept here: data, functions and policies are read where they are.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
import threading
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgym.errors import UserError

_IMPORTING = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkPackage:
    """Where a package is. environment, requirements: for what is said when something of it is missing."""

    name: str
    folder: Path
    environment: str
    requirements: str

    @classmethod
    def find(cls, name: str, path: str | None, *, environment: str, requirements: str) -> BenchmarkPackage:
        """path: the package's folder, or one that holds it, as a checkout does; None takes the installed one.

        Raises UserError that says what to install.
        """
        if path is None:
            spec = importlib.util.find_spec(name)
            folders = list(spec.submodule_search_locations or ()) if spec else []
            if not folders:
                raise UserError(
                    f"{environment}: the package {name!r} is not installed. {requirements}; or give `path`, its folder"
                )
            folder = Path(folders[0])
        else:
            given = Path(path).expanduser()
            inside = next((one for one in (given / name, given / "src" / name) if one.is_dir()), given / name)
            folder = given if given.name == name and not inside.is_dir() else inside
            if not folder.is_dir():
                raise UserError(f"{environment}: path {path!r} has no folder {name!r} in it. {requirements}")
        return cls(name=name, folder=folder.resolve(), environment=environment, requirements=requirements)

    def modules(self, *names: str, skip: Sequence[str] = ()) -> list[Any]:
        """Import modules by their names inside the package. skip: packages above them whose `__init__` is not run.

        That of the package itself is never run: an `__init__` may import every client of every model, when all that
        is needed are its functions and its data. Raises UserError for what is missing.
        """
        with _IMPORTING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of another author's code
            for inner in ("", *skip):
                self._import_inner(inner)
            try:
                return [importlib.import_module(f"{self.name}.{name}") for name in names]
            except ImportError as error:
                raise UserError(
                    f"{self.environment}: {self.name} in {self.folder} could not be imported: {error}. "
                    f"{self.requirements}"
                ) from error

    def file(self, *parts: str) -> Path:
        """A file of the package. Raises UserError when it is not there."""
        path = self.folder.joinpath(*parts)
        if not path.is_file():
            raise UserError(
                f"{self.environment}: {path} is missing, so this is another version of {self.name} than the one that "
                f"is read here. {self.requirements}"
            )
        return path

    def _import_inner(self, inner: str) -> None:
        """Enter a package into `sys.modules` with its folder alone."""
        name = f"{self.name}.{inner}" if inner else self.name
        folder = str(self.folder.joinpath(*inner.split("."))) if inner else str(self.folder)
        there = sys.modules.get(name)
        if there is not None:
            folders = [str(Path(one).resolve()) for one in getattr(there, "__path__", ())]
            if folder not in folders:
                raise UserError(
                    f"{self.environment}: {name} was imported from {', '.join(folders)} in this process already, not "
                    f"from {folder}; leave out `path`, or begin another process"
                )
            return
        spec = importlib.util.spec_from_file_location(
            name, Path(folder) / "__init__.py", submodule_search_locations=[folder]
        )
        assert spec is not None  # it is made of a file's name, whether or not the file exists
        sys.modules[name] = importlib.util.module_from_spec(spec)


def files_hash(files: Iterable[Path]) -> str:
    """SHA-256 over the names and contents of files, in the order of their names."""
    total = hashlib.sha256()
    for path in sorted(files, key=lambda path: path.name):
        total.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        total.update(path.read_bytes())
    return total.hexdigest()


def refuse_training(environment: str, split: str) -> None:
    """Raises UserError for the train split of a benchmark that has none."""
    if split == "train":
        raise UserError(
            f"{environment} is an evaluation set and has no train split: train on `tool_use`, whose worlds are "
            f"generated, and evaluate on {environment}"
        )


def in_order(keys: Iterable[str], seed: int) -> list[str]:
    """Keys in an order that the seed fixes on every machine, so that the first ones are a fair sample."""
    return sorted(keys, key=lambda key: hashlib.sha256(f"{seed}/{key}".encode()).hexdigest())
