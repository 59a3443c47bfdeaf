"""The two kinds of error that are not a bug of ours: the user's mistake, and broken infrastructure."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable

DISTRIBUTION = "gymwright"
"""Our name for pip, as in pyproject.toml. What PyPI calls `agentgym`, our name for all else, is another project."""
LISTED = 60
"""Names in an error at most."""


class UserError(ValueError):
    """The user's mistake: a wrong name, field, file or value. The command line exits with 2."""


class InfraError(RuntimeError):
    """A part of the system failed, not the agent: the work is retried, then left out, never scored 0.

    source: the part, as `sandbox:NAME`, where the one that called it knows.
    """

    source: str = ""


def nearest(given: str, known: Iterable[str]) -> str:
    """The end of an error sentence: the nearest known name, then all of them; of very many the nearest."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    shown = (
        names if len(names) <= LISTED else sorted(difflib.get_close_matches(given, names, n=LISTED // 2, cutoff=0.0))
    )
    more = f" and {len(names) - len(shown)} more" if len(shown) < len(names) else ""
    return f"{guess} Available: {', '.join(shown) or 'none'}{more}."


def pip_install(extra: str) -> str:
    """The command that installs an extra. What is installed of us satisfies it: pip fetches the missing packages."""
    import importlib.metadata

    try:
        importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return f"pip install -e '.[{extra}]' in the checkout of agentgym"
    return f"pip install '{DISTRIBUTION}[{extra}]'"


_PACKAGES = {
    "monarch": "torchmonarch", "cloudpickle": "torchmonarch", "tokenizers": "transformers", "numpy": "transformers",
}  # fmt: skip
"""Of modules: the package that brings them, where it has another name."""


def extra_of(module: str) -> str:
    """The extra that brings a module's package, by the installed metadata; empty where none does."""
    import importlib.metadata

    from packaging.requirements import Requirement

    package = _PACKAGES.get(module, module).replace("_", "-")
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        needed = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or ()]
        for extra in importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or ():
            environment = {"extra": extra}
            of_it = [one.name for one in needed if one.marker and one.marker.evaluate(environment)]
            if extra not in ("all", "dev") and package in of_it:
                return str(extra)
    return ""


def pip_install_only(extra: str, *only: str) -> str:
    """The command that installs the packages of an extra, or those named of them, without agentgym."""
    import importlib.metadata
    import shlex

    from packaging.requirements import Requirement

    packages = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for line in importlib.metadata.requires(DISTRIBUTION) or ():
            needed = Requirement(line)
            marker = needed.marker
            if marker is None or "extra" not in str(marker) or (only and needed.name not in only):
                continue
            if marker.evaluate({"extra": extra}):
                needed.marker = None
                packages.append(shlex.quote(str(needed)))
    return f"pip install {' '.join(packages)}" if packages else pip_install(extra)


def waited_for(error: BaseException) -> InfraError | None:
    """The infrastructure that a call out of time was waiting for, where the cancelled wait says so by its cause."""
    import asyncio  # only here: to import the library needs no event loop

    cause = error.__cause__
    while isinstance(cause, asyncio.CancelledError):
        cause = cause.__cause__
    return cause if isinstance(cause, InfraError) else None
