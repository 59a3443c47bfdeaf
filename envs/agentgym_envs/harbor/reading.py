"""Reads values out of a parsed TOML table: each error names the file's key, and what is not read is remembered."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from agentgym.errors import UserError, nearest

_MISSING: Final = object()


class Table:
    """A table of a TOML file. where: its dotted name, empty at the top. unknown: keys that nobody reads, filled by
    `done`."""

    def __init__(self, values: Mapping[str, Any], where: str = "", unknown: list[str] | None = None) -> None:
        self._values = values
        self.where = where
        self.unknown = [] if unknown is None else unknown
        self._read: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._values

    def name(self, key: str) -> str:
        """The dotted name of a key."""
        return f"{self.where}.{key}" if self.where else key

    def refuse(self, key: str, message: str) -> UserError:
        return UserError(f"{self.name(key)} is {self._values.get(key)!r:.80}; {message}")

    def text(self, key: str, default: str = "") -> str:
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self.refuse(key, "give a text")
        return value

    def needed(self, key: str) -> str:
        """A text that may not be missing."""
        if not self.has(key):
            raise UserError(f"{self.where or 'the file'} has no {key!r}, which is needed")
        return self.text(key)

    def number(self, key: str, default: float, *, least: float = -math.inf) -> float:
        """A finite number of at least `least`."""
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
            raise self.refuse(key, "give a finite number" + (f" of at least {least:g}" if least > -math.inf else ""))
        return float(value)

    def whole(self, key: str, default: int, *, least: int = 0) -> int:
        value = self._take(key, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.refuse(key, f"give a whole number of at least {least}")
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        value = self._take(key, default)
        if value is not default and value not in choices:
            raise self.refuse(key, f"it has to be one of the known ones.{nearest(str(value), choices)}")
        return str(value)

    def boolean(self, key: str) -> bool | None:
        value = self._take(key, None)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "give true or false")
        return value

    def user(self, key: str) -> str:
        """A user's name or number; empty for the image's."""
        value = self._take(key, "")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise self.refuse(key, "give a user's name or number")
        return str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self.refuse(key, "give a list of texts")
        return tuple(value)

    def pairs(self, key: str) -> dict[str, str]:
        """A table of texts."""
        value = self._take(key, {})
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise self.refuse(key, "give a table whose values are texts")
        return dict(value)

    def free(self, key: str) -> Any:
        """A value of any kind; None where it is missing."""
        return self._take(key, None)

    def table(self, key: str) -> Table | None:
        value = self._take(key, None)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise self.refuse(key, "give a table")
        return Table(value, self.name(key), self.unknown)

    def tables(self, key: str) -> list[Table]:
        """An array of tables; a text among them stands for a table with that `source`."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(one, dict | str) for one in value):
            raise self.refuse(key, "give a list of tables")
        named = [{"source": one} if isinstance(one, str) else one for one in value]
        return [Table(one, f"{self.name(key)}[{number}]", self.unknown) for number, one in enumerate(named)]

    def done(self) -> None:
        """Note the keys that were not read."""
        self.unknown.extend(self.name(key) for key in self._values if key not in self._read)

    def _take(self, key: str, default: Any) -> Any:
        self._read.add(key)
        value = self._values.get(key, _MISSING)
        return default if value is _MISSING else value
