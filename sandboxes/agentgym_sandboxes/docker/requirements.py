"""Requirements of Python packages, as a user writes them for pip: read strictly, and made uniform."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import dataclass

from agentgym.errors import UserError

_REQUIREMENT = re.compile(
    r"\s*(?P<name>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*"
    r"(?:\[(?P<extras>[A-Za-z0-9._,\s-]*)\]\s*)?"
    r"(?P<clauses>.*)"
)
_CLAUSE = re.compile(r"\s*(===|==|~=|!=|<=|>=|<|>)\s*([A-Za-z0-9][A-Za-z0-9._+!*-]*)\s*")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Requirement:
    """A package and the versions of it that will do; all of them when there are no clauses."""

    name: str
    extras: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()

    @classmethod
    def of(cls, text: str) -> Requirement:
        """Raises UserError for what is no name with versions."""
        found = _REQUIREMENT.fullmatch(text)
        parts = found["clauses"].split(",") if found and found["clauses"] else []
        clauses = [_CLAUSE.fullmatch(part) for part in parts]
        if found is None or not all(clauses):
            raise UserError(
                f"sandbox.options.packages has {text!r}; give names with versions, as numpy==2.3.1 or "
                "pandas[excel]>=2.2,<3, and no addresses, files, markers or options. A package that no index has: "
                "put its wheel into a folder, and name that in PIP_FIND_LINKS when you build."
            )
        extras = {uniform(extra.strip()) for extra in (found["extras"] or "").split(",") if extra.strip()}
        return cls(
            name=uniform(found["name"]),
            extras=tuple(sorted(extras)),
            clauses=tuple(sorted({clause[1] + clause[2] for clause in clauses if clause})),
        )

    @property
    def is_pinned(self) -> bool:
        """Whether only one version will do."""
        return any(clause.startswith("==") and "*" not in clause for clause in self.clauses)

    def __str__(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{','.join(self.clauses)}"


def read_requirements(texts: Iterable[str]) -> tuple[Requirement, ...]:
    """In one order, however they were given. Raises UserError, also for a package that is named twice."""
    found = sorted(Requirement.of(text) for text in texts)
    for one, next_one in itertools.pairwise(found):
        if one.name == next_one.name:
            raise UserError(
                f"sandbox.options.packages names {one.name} twice: {one} and {next_one}; join them, as in a>=1,<2"
            )
    return tuple(found)


def uniform(name: str) -> str:
    """A name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
