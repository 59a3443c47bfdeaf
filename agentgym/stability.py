"""The public API over time: old names warn before they go, and a plugin states the version that it was built for.

What is promised: docs/stability.md.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from agentgym.errors import UserError

VERSION: Final = "0.1.0"
"""Of the distribution: pyproject.toml reads it from here, and a release is tagged with a v and this."""
API: Final = "0.1"
"""The version of the public API: the first two numbers of agentgym's own."""
BREAKS: Final[Mapping[str, str]] = {}
"""What plugins must change, by the version that asks for it: {"0.3": "the hook `sinks` returns classes"}."""
ATTRIBUTE: Final = "agentgym_api"
"""Of a plugin's module: the version that it was built for."""
_STATED = re.compile(rf"""^{ATTRIBUTE}\b[^=\n]*=\s*["']([\d.]+)["']""", re.MULTILINE)


class AgentgymDeprecationWarning(FutureWarning):
    """A name was used that a later version, which the text names, does not have."""


def renamed(old: str, new: str, *, goes: str, error: type[Exception] = ImportError) -> str:
    """The note that a name has changed. From the version `goes` on, raises `error` with that note instead."""
    if _numbers(goes) <= _numbers(API):
        raise error(f"{old} is now {new}")
    return f"{old} is now {new}; the old name goes in agentgym {goes}"


def warn_renamed(old: str, new: str, *, goes: str, error: type[Exception] = ImportError, stacklevel: int = 2) -> None:
    """Warn of the use of an old name, or raise `error`, as `renamed` does. stacklevel: of whoever used it."""
    warnings.warn(renamed(old, new, goes=goes, error=error), AgentgymDeprecationWarning, stacklevel + 1)


def built_for(stated: object, distribution: str, *, breaks: Mapping[str, str] = BREAKS) -> str:
    """For which older version a plugin was built, and what has changed since; "" where it is not older.

    stated: the plugin's `agentgym_api`, or None. Raises UserError for a newer version, and for what is not a version.
    """
    if stated is None:
        return ""
    if not isinstance(stated, str) or not re.fullmatch(r"\d{1,4}(\.\d{1,4}){1,3}", stated, re.ASCII):
        raise UserError(
            f"{ATTRIBUTE} is {stated!r:.40}; state the version of agentgym that the plugin was built for: "
            f'{ATTRIBUTE} = "{API}"'
        )
    built, ours = _numbers(stated), _numbers(API)
    text = f"built for agentgym {stated}, this is {API}"
    if built > ours:
        raise UserError(f"{text}: upgrade agentgym, or install an older {distribution}")
    changes = [f"in {version} {change}" for version, change in breaks.items() if built < _numbers(version) <= ours]
    return "; ".join([text, *changes]) if built < ours else ""


def stated_by(module: str) -> str | None:
    """The version that a module's file states, or None: for a module that cannot be imported."""
    with contextlib.suppress(Exception):  # the packages above it are imported, and its file may be anything
        spec = importlib.util.find_spec(module)
        if spec and spec.origin and (found := _STATED.search(Path(spec.origin).read_text(encoding="utf-8"))):
            return found[1]
    return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split(".")[:2])
