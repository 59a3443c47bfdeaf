"""A data base that thousands of episodes share: an episode copies only the records that it asks for by key.

Reading all of retail's data takes some 30 ms and 20 MB, and hashing it as long again; an episode changes two or three
records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NoReturn

Table = Mapping[str, Any]


class _FrozenDict(dict[str, Any]):
    """A dict, also for `json`, that cannot be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a record met in a loop over all of them cannot be changed; look it up by its key")

    __setitem__ = __delitem__ = __ior__ = update = pop = popitem = clear = setdefault = _refuse


class _FrozenList(list[Any]):
    """A list, also for `json`, that cannot be changed."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("a record met in a loop over all of them cannot be changed; look it up by its key")

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = extend = insert = pop = _refuse
    remove = clear = sort = reverse = _refuse


def freeze(value: Any) -> Any:
    """Plain JSON data as data that cannot be changed."""
    if isinstance(value, dict):
        return _FrozenDict((key, freeze(inner)) for key, inner in value.items())
    return _FrozenList(map(freeze, value)) if isinstance(value, list) else value


def _thaw(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thaw(inner) for key, inner in value.items()}
    return [_thaw(inner) for inner in value] if isinstance(value, list) else value


class Records(MutableMapping[str, Any]):
    """One episode's view of a table. Records looked up by key are its own; those met in a loop are shared, frozen."""

    def __init__(self, shared: Table) -> None:
        self._shared = shared
        self._own: dict[str, Any] = {}
        self._gone: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        if key not in self._own:
            if key in self._gone:
                raise KeyError(key)
            self._own[key] = _thaw(self._shared[key])
        return self._own[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._gone.discard(key)
        self._own[key] = value

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self._own.pop(key, None)
        self._gone.add(key)

    def __contains__(self, key: object) -> bool:
        return key in self._own or (key in self._shared and key not in self._gone)

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self._shared if key not in self._gone)
        yield from (key for key in self._own if key not in self._shared)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def values(self) -> Any:
        return [self._seen(key) for key in self]

    def items(self) -> Any:
        return [(key, self._seen(key)) for key in self]

    def changes(self) -> dict[str, str | None]:
        """The records that are not as in the table, each as a canonical text; None: it is gone."""
        changed: dict[str, str | None] = {key: None for key in self._gone if key in self._shared}
        for key, value in self._own.items():
            text = _canonical(value)
            if key not in self._shared or text != _canonical(self._shared[key]):
                changed[key] = text
        return changed

    def _seen(self, key: str) -> Any:
        return self._own[key] if key in self._own else self._shared[key]


def _canonical(value: Any) -> str:
    """One text for one state: keys in order, 1 and 1.0 told apart, as in the benchmark's own hash."""
    return json.dumps(value, sort_keys=True, default=repr)
