"""Objects by import path, `package.module:Name` or `my_file.py:Name`, with the nearest name when there is none."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from agentgym.contracts import check_class
from agentgym.errors import UserError, nearest

_PREFIX: Final = "_agentgym_file_"  # of the modules that were loaded from a file's path


def is_import_path(name: str) -> bool:
    """Whether it can only be an import path, not the name of something that a plugin provides."""
    return ":" in name or name.endswith(".py")


def import_object(
    path: str, wanted: str = "", fits: Callable[[object], bool] = lambda value: True, *, local: bool = False
) -> object:
    """The module's attribute. wanted: what `fits` accepts, in words.

    local: a file's path and a module of the current folder are taken too, for what only processes of this run
    import. Raises UserError for a path of another form, a module that does not import, and a name that the module
    does not have or that does not fit; it lists the names that do.
    """
    module_name, colon, name = path.partition(":")
    if module_name.endswith(".py") and not local:
        file = Path(module_name)
        raise UserError(
            f"{path!r} is a file, and each process of a run has to import its module: "
            f"write {file.stem}:{name or 'NAME'}, and set PYTHONPATH={file.parent}"
        )
    of_file = module_name.endswith(".py")
    parts = (name,) if of_file else (*module_name.split("."), name)
    if not (of_file and not name) and not (colon and all(part.isidentifier() for part in parts)):
        forms = "package.module:Name or my_file.py:Name" if local else "package.module:Name"
        raise UserError(f"{path!r} is not an import path; write {forms}")
    if local:
        _append_to_path(Path.cwd())
    module = load_file(module_name) if of_file else _import_module(path, module_name)
    found: object = getattr(module, name, None)
    if hasattr(module, name) and fits(found):
        return found
    problem = f"{path!r} is not {wanted}" if hasattr(module, name) else f"{name!r} does not exist in {module_name}"
    if not name:
        problem = f"{path!r} has no name behind it; write {module_name}:NAME"
    if module_name == "__main__":
        problem += " (what a script or notebook defined is gone when it has ended)"
    others = [n for n, value in vars(module).items() if not n.startswith("_") and fits(value)]
    raise UserError(f"{problem}.{nearest(name, others)}")


def import_class(path: str, wanted: str, base: type, *, local: bool = False) -> type:
    """A subclass of `base` that defines all that it must. wanted: what that is, in words; the rest: `import_object`."""

    def fits(value: object) -> bool:
        return isinstance(value, type) and issubclass(value, base) and value is not base

    found = import_object(path, wanted, fits, local=local)
    assert isinstance(found, type)
    check_class(found, base, repr(path))
    return found


def import_path_of(thing: Any) -> str:
    """The path by which `import_object` finds a class or a function. Raises UserError where there is none."""
    module, name = thing.__module__, thing.__qualname__
    if not name.isidentifier():  # <locals>, <lambda>, or inside a class
        raise UserError(f"{name} cannot be imported from {module}; define it at the top level of the file")
    return f"{loaded_files().get(module, module)}:{name}"


def loaded_files() -> dict[str, str]:
    """The modules that `load_file` made in this process, with their files."""
    return {name: str(m.__file__) for name, m in list(sys.modules.items()) if name.startswith(_PREFIX)}


def load_file(path: str) -> ModuleType:
    """The module in a Python file, run once a process; files beside it can be imported by it. Raises UserError."""
    import hashlib

    file = Path(path).resolve()
    if not file.is_file():
        siblings = [str(Path(path).parent / sibling.name) for sibling in file.parent.glob("*.py")]
        raise UserError(f"no file {path!r}.{nearest(path, siblings)}")
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
    except (Exception, SystemExit) as error:  # the user's code
        del sys.modules[name]
        raise UserError(f"importing {path} failed with {_described(error, str(file))}") from error
    return module


def _import_module(path: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # a third party's code
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            hint = _other_modules(str(error.name))
            raise UserError(f"{path!r}: there is no module {error.name!r}.{hint}") from None
        raise UserError(f"{path!r}: importing {name} failed with {_described(error)}") from error


def _described(error: BaseException, file: str = "") -> str:
    """The error with the line that raised it; where the file has a part in it, the file's line."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    frames = [f for f in frames if f.filename == file] or frames
    place = f" ({frames[-1].filename}, line {frames[-1].lineno}: {frames[-1].line})" if frames else ""
    has_place = isinstance(error, SyntaxError)  # its own text does
    return f"{type(error).__name__}: {error}{'' if has_place else place}"


def _other_modules(missing: str) -> str:
    """What to do about a missing module: the nearest of its package, or of all that are installed."""
    package, _, name = missing.rpartition(".")
    if package:
        found = pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ()))
        return nearest(name, [module.name for module in found])
    if Path(f"{name}.py").is_file() or Path(name).is_dir():
        return f" {name!r} is in the current folder, where Python does not look: set PYTHONPATH=."
    close = difflib.get_close_matches(name, [module.name for module in pkgutil.iter_modules()], 1, 0.8)
    return (f" Did you mean {close[0]!r}?" if close else "") + " Is its package installed?"


def _append_to_path(folder: Path) -> None:
    """Appends a folder to sys.path, at the end, so that nothing there hides an installed module."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
