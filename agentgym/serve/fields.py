"""What an interface does with each field of a request: from this, requests are checked and the docs are made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from agentgym.errors import nearest
from agentgym.serve.reading import as_object, refuse
from agentgym.types import Json

_MAX_SHOWN = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Fields:
    """The fields of a request. A name with a dot leads into an object.

    honoured: decide what is sampled. sampling: the run's own win in an episode. preferred: wishes, which the policy may
    not follow. ignored: change nothing that the caller sees in an answer. only: by name, the only values that can be
    honoured, null always among them. hosted: tools that a vendor's servers would run; they are dropped, and counted.
    closed: objects that have the named fields and no others.
    """

    honoured: frozenset[str]
    sampling: frozenset[str] = frozenset()
    preferred: frozenset[str] = frozenset()
    ignored: frozenset[str] = frozenset()
    only: Mapping[str, tuple[Json, ...]] = field(default_factory=dict)
    hosted: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()

    def check(self, body: Mapping[str, Json]) -> tuple[str, ...]:
        """Refuse what would be dropped unseen: unknown names, and values that change the answer.

        Returns the fields that are accepted and change no token, but for the model's name.
        """
        named = (*self.honoured, *self.sampling, *self.preferred, *self.ignored, *self.only)
        self._check_names(body, {name.partition(".")[0] for name in named})
        for name in self.closed:
            known = {one.removeprefix(f"{name}.") for one in named if one.startswith(f"{name}.")}
            self._check_names(as_object(body.get(name) or {}, name), known, f"{name}.")
        for name, allowed in self.only.items():
            value = _found(body, name)
            if value is not None and value not in allowed:
                values = " or ".join(json.dumps(one) for one in allowed)
                shown = json.dumps(value)[:_MAX_SHOWN]
                refuse(f"{shown} cannot be honoured here; leave it out{values and f', or give {values}'}", name)

        given = (one for one in self.preferred | self.ignored if _found(body, one) is not None)
        return tuple(sorted(one for one in given if one != "model"))

    @staticmethod
    def _check_names(given: Mapping[str, Json], known: set[str], path: str = "") -> None:
        for name, value in given.items():
            if name not in known and value is not None:
                refuse(f"unknown parameter.{nearest(name, known)}", f"{path}{name}")


def _found(body: Mapping[str, Json], name: str) -> Json:
    """The value of a field, null where there is none. Raises CallRefused where a dot leads into no object."""
    parts = name.split(".")
    value: Json = body.get(parts[0])
    for n, part in enumerate(parts[1:], start=1):
        value = None if value is None else as_object(value, ".".join(parts[:n])).get(part)
    return value
