"""GPUs with who sits on them, in lines for a person: those that are alike once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from agentgym.planning.memory import Parts

NUMBER = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What is shown of a GPU, or of the host: a name and what it takes for each process."""

    gpu: int | None
    total: str
    names: list[str]
    parts: list[str]

    @property
    def alike(self) -> tuple[object, ...]:
        """The same for GPUs that differ in numbers alone."""
        return self.total, [NUMBER.sub("", name) for name in self.names], self.parts


def shown_once(blocks: list[Block]) -> list[str]:
    """GPUs that are alike."""
    first, last = blocks[0], blocks[-1]
    if first is last:
        names, where, each = first.names, "the host" if first.gpu is None else f"GPU {first.gpu}", ""
    else:
        pairs = zip(first.names, last.names, strict=True)
        names, where, each = [_span(*pair) for pair in pairs], f"GPU {first.gpu}-{last.gpu}", ", each"
    lines = [f"{where.ljust(13)}{first.total} GiB estimated{each}"]
    return lines + [f"  {name.ljust(20)}{part}" for name, part in zip(names, first.parts, strict=True)]


def _span(first: str, last: str) -> str:
    """Joins two names that differ in a number: trainer 1-31."""
    found = NUMBER.findall(last)
    return NUMBER.sub(lambda number: f"{number[0]}-{found[0]}", first) if len(found) == 1 else f"{first} to {last}"


def numbers(of: Sequence[int]) -> str:
    """Ascending numbers in words: three and more in a row as their first and last."""
    rows: list[list[int]] = []
    for number in of:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    return ", ".join(f"{row[0]}-{row[-1]}" if len(row) > 2 else ", ".join(map(str, row)) for row in rows)


def shown(parts: Parts) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in parts.items() if size >= 0.05)
