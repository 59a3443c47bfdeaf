"""Requirements of Python packages, as a user writes them for pip, in one order and spelling."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from packaging.requirements import InvalidRequirement
from packaging.requirements import Requirement as Parsed
from packaging.utils import canonicalize_name

from agentgym.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Requirement:
    """A package and its allowed versions; all of them when there are no clauses."""

    name: str
    extras: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Self:
        """Raises UserError for what is not a name with versions."""
        try:
            found = Parsed(text)
        except InvalidRequirement:
            found = None
        if found is None or found.url is not None or found.marker is not None:
            raise UserError(
                f"sandbox.options.packages has {text!r}; give names with versions, as numpy==2.3.1 or "
                "pandas[excel]>=2.2,<3, and no addresses, files, markers or options. A package that no index has: "
                "put its wheel into a folder, and name that in PIP_FIND_LINKS when you build."
            )
        return cls(
            name=canonicalize_name(found.name),
            extras=tuple(sorted({canonicalize_name(extra) for extra in found.extras})),
            clauses=tuple(sorted(map(str, found.specifier))),
        )

    @property
    def is_pinned(self) -> bool:
        """Whether only one version will do."""
        return any(clause.startswith("==") and "*" not in clause for clause in self.clauses)

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{','.join(self.clauses)}"


def read_requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """Reads requirements into one order, however they were given. Raises UserError, also for a package that is named
    twice.
    """
    found = sorted(Requirement.of(text) for text in texts)
    for one, next_one in itertools.pairwise(found):
        if one.name == next_one.name:
            raise UserError(
                f"sandbox.options.packages names {one.name} twice: {one} and {next_one}; join them, as in a>=1,<2"
            )
    return tuple(found)
