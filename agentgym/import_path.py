"""Objects by import path, `package.module:Name`, with the nearest name when there is none."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

from agentgym.errors import UserError, nearest


def import_object(path: str, wanted: str = "", fits: Callable[[object], bool] = lambda value: True) -> object:
    """The module's attribute. wanted: what `fits` accepts, in words.

    Raises UserError for a path of another form, a module that does not import, and a name that the module does
    not have or that does not fit; it lists the names that do.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise UserError(f"{path!r} is not an import path; write package.module:Name")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a third party's code
        if isinstance(error, ModuleNotFoundError) and f"{module_name}.".startswith(f"{error.name}."):
            hint = _other_modules(str(error.name))
            raise UserError(f"{path!r}: there is no module {error.name!r}.{hint}") from None
        cause = f"{type(error).__name__}: {error}"
        raise UserError(f"{path!r}: importing {module_name} failed with {cause}") from error
    found: object = getattr(module, name, None)
    if hasattr(module, name) and fits(found):
        return found
    problem = f"is not {wanted}" if hasattr(module, name) else f"does not exist in {module_name}"
    others = [n for n, value in vars(module).items() if not n.startswith("_") and fits(value)]
    raise UserError(f"{path!r} {problem}.{nearest(name, others)}")


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
