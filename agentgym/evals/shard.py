"""A shard: the part of an evaluation's tasks that one machine plays, as `2/8`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Number `number`, from 1, of `total`. Every total-th task is its own, so that each has tasks of every kind."""

    number: int
    total: int

    @classmethod
    def read(cls, text: str) -> Self:
        """Empty is all tasks. Raises ValueError for what names none."""
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text or "1/1")
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            raise ValueError(f"eval.shard is {text!r}; give a number of a total, from 1/8 to 8/8")
        return cls(number=int(found[1]), total=int(found[2]))

    def tasks(self, num: int) -> range:
        """The numbers of its tasks, of `num`, from 0."""
        return range(self.number - 1, num, self.total)
