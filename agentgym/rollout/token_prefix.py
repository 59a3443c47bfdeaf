"""Token ids of an episode's contexts, which all begin alike: one array holds them."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import overload


class TokenPrefix(Sequence[int]):
    """The first ids of an array that only grows: the turns of an episode share it, so its memory is linear in tokens.

    It compares, adds and slices like the tuple of its ids.
    """

    __slots__ = ("_ids", "_length")

    def __init__(self, ids: array[int]) -> None:
        self._ids, self._length = ids, len(ids)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[int, ...]: ...
    def __getitem__(self, at: int | slice) -> int | tuple[int, ...]:
        if isinstance(at, slice):
            return tuple(self._ids[slice(*at.indices(self._length))])
        return self._ids[range(self._length)[at]]

    def __iter__(self) -> Iterator[int]:
        return itertools.islice(self._ids, self._length)

    def __add__(self, other: tuple[int, ...]) -> tuple[int, ...]:
        return (*self, *other)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (tuple, TokenPrefix)) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @classmethod
    def first(cls, ids: array[int], length: int) -> TokenPrefix:
        """The first `length` ids."""
        prefix = cls.__new__(cls)
        prefix._ids, prefix._length = ids, length
        return prefix

    def shared(self) -> tuple[Callable[[array[int], int], TokenPrefix], tuple[array[int], int]]:
        """How a pickle writes it whose other prefixes share the array."""
        return TokenPrefix.first, (self._ids, self._length)

    def __reduce__(self) -> tuple[type[tuple[int, ...]], tuple[tuple[int, ...]]]:
        return tuple, (tuple(self),)
