"""Objects by import path, `package.module:Name`, with the nearest name when there is none."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from agentgym.errors import UserError, nearest


def import_object(path: str, fits: Callable[[object], bool] = lambda value: True) -> object:
    """The module's attribute. fits: which of the module's public names an error suggests.

    Raises UserError for a path of another form, a module that does not import and a name it does not have.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise UserError(f"{path!r} is not an import path; write package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a third party's code
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            raise UserError(
                f"{path!r}: there is no module {error.name!r}.{_other_modules(str(error.name))}"
            ) from None
        raise UserError(
            f"{path!r}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        others = public_names(module, fits) or public_names(module)
        raise UserError(f"{path!r}: {module_name} has no {name!r}.{nearest(name, others)}")
    found: object = getattr(module, name)
    return found


def public_names(module: ModuleType, fits: Callable[[object], bool] = lambda value: True) -> list[str]:
    """The module's public names whose values fit."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and fits(value)]


def _other_modules(missing: str) -> str:
    """What to do about a missing module: the nearest of its package, or of all that is installed."""
    package, _, name = missing.rpartition(".")
    if package:
        found = pkgutil.iter_modules(getattr(importlib.import_module(package), "__path__", ()))
        return nearest(name, [module.name for module in found])
    if Path(f"{name}.py").is_file() or Path(name).is_dir():
        return f" {name!r} is in the current folder, where Python does not look: set PYTHONPATH=."
    close = difflib.get_close_matches(
        name, [module.name for module in pkgutil.iter_modules()], n=1, cutoff=0.8
    )
    return (f" Did you mean {close[0]!r}?" if close else "") + " Is its package installed?"
