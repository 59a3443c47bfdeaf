"""Loads what an import path names: `my_env.py:GuessNumber`, or `package.module:GuessNumber`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from agentgym.env import Environment
from agentgym.errors import UserError, nearest
from agentgym.rewards import Reward, marked_reward

_PREFIX: Final = "_agentgym_file_"  # of the modules that were loaded from a file's path


def is_import_path(name: str) -> bool:
    """Whether it can only be an import path, not the name of something a plugin provides."""
    return ":" in name or name.endswith(".py")


def load_object(path: str) -> object:
    """What the path names. Raises UserError when it does not import, and when the name is not in it."""
    return _load(path)[1]


def load_environment_class(path: str) -> type[Environment[Any]]:
    """Raises UserError when the path names something that is not an environment's class."""
    module, thing = _load(path)
    if not (isinstance(thing, type) and issubclass(thing, Environment)):
        there = [n for n in defined_in(module) if _is_environment(getattr(module, n))]
        what = "another class" if isinstance(thing, type) else f"of type {type(thing).__name__}"
        raise UserError(
            f"{path!r} is {what}, not a subclass of agentgym.Environment."
            + nearest(path.rpartition(":")[2], there)
        )
    if missing := sorted(getattr(thing, "__abstractmethods__", ())):
        raise UserError(f"the environment {path!r} does not define {', '.join(missing)}")
    return thing


def load_reward(path: str) -> Reward:
    """A function, marked with `@reward` or not, or a Reward. Raises UserError for anything else."""
    thing = load_object(path)
    if isinstance(thing, Reward):
        return thing
    if isinstance(thing, type) or not callable(thing):
        raise UserError(f"the reward {path!r} is {thing!r:.80}; give a function that takes an episode")
    return marked_reward(thing) or Reward(name=path.rpartition(":")[2], function=thing)


def import_path_of(thing: type | Any) -> str:
    """The path by which `load_object` finds a class or a function. Raises UserError where there is none."""
    module, name = thing.__module__, thing.__qualname__
    if "<" in name:  # <locals>, <lambda>
        raise UserError(f"{name} has no name of its own in {module}; define it at the top level of the file")
    return f"{loaded_files().get(module, module)}:{name}"


def loaded_files() -> dict[str, str]:
    """The modules that `load_file` made in this process, with their files."""
    return {name: str(m.__file__) for name, m in list(sys.modules.items()) if name.startswith(_PREFIX)}


def load_file(path: str) -> ModuleType:
    """The module in a Python file, run once a process; files beside it can be imported by it."""
    file = Path(path).resolve()
    if not file.is_file():
        found = [str(p.relative_to(Path.cwd()) if p.is_relative_to(Path.cwd()) else p)
                 for p in file.parent.glob("*.py")]  # fmt: skip
        raise UserError(f"no file {path!r}.{nearest(path, found)}")
    import hashlib

    name = f"{_PREFIX}{file.stem}_{hashlib.sha256(bytes(file)).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None  # it ends with .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _append_to_path(file.parent)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, (Exception, SystemExit)):
            raise _not_imported(path, error, str(file)) from error
        raise
    return module


def defined_in(module: ModuleType) -> list[str]:
    """The public names that a module itself defines."""
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", module.__name__) == module.__name__
        and not isinstance(thing, ModuleType)
    ]  # fmt: skip


def _load(path: str) -> tuple[ModuleType, object]:
    place, _, name = path.rpartition(":") if ":" in path else (path, "", "")
    module = load_file(place) if place.endswith(".py") else _import_module(place)
    thing: object = module
    for part in name.split("."):
        if not hasattr(thing, part):
            what = f"{place} has no {name!r}" if name else f"{path!r} names nothing in it; write {place}:NAME"
            there = nearest(name, defined_in(module))
            hint = " A script's or notebook's own names are gone when it ends: give a file."
            raise UserError(f"{what}.{there}{hint if place == '__main__' else ''}")
        thing = getattr(thing, part)
    return module, thing


def _import_module(name: str) -> ModuleType:
    _append_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise UserError(
                f"no module {name!r}. Is its package installed? A file is named by its path, "
                f"as in {name.replace('.', '/')}.py:NAME"
            ) from error
        raise _not_imported(name, error, "") from error


def _not_imported(name: str, error: BaseException, file: str) -> UserError:
    """With the line of the file where it failed; else with the last one."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    of_file = [f for f in frames if f.filename == file] or frames
    place = f" ({of_file[-1].filename}, line {of_file[-1].lineno}: {of_file[-1].line})" if of_file else ""
    if isinstance(error, SyntaxError):
        place = ""  # its text has the file and the line
    return UserError(f"{name!r} could not be imported: {type(error).__name__}: {error}{place}")


def _append_to_path(folder: Path) -> None:
    """At the end, so that nothing there hides an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


def _is_environment(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, Environment)
