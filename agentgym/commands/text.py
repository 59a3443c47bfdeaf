"""How commands lay out what they print: tables, wrapped lines."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

MAX_NAMES = 8  # of a list in a message
_COMMAND = re.compile(r"`([^`]+)`")


def table_lines(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns that line up; numeric columns are right-aligned."""
    if not rows:
        return ["  ".join(header), "(none)"]
    columns = list(zip(header, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    right = [all(_is_number(cell) for cell in column[1:]) for column in columns]
    lines = [
        "  ".join(
            cell.rjust(width) if is_right else cell.ljust(width)
            for cell, width, is_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in [header, *rows]
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _is_number(cell: str) -> bool:
    return not cell.strip("+-0123456789.,%einfa ") and bool(cell)


def few(names: Sequence[object]) -> str:
    """The names, the middle left out where they are many."""
    shown = [*map(str, names)]
    return ", ".join(shown if len(shown) <= MAX_NAMES else [*shown[: MAX_NAMES - 2], "...", shown[-1]])


def memory(gib: float) -> str:
    """An amount of memory: below a GiB in MiB, which would be 0.0 GiB."""
    mib = round(1024 * gib)
    return f"{mib} MiB" if mib < 1024 else f"{gib:.1f} GiB"


def commands_in(message: str) -> list[str]:
    """The commands that a message suggests: its text in backticks."""
    return list(dict.fromkeys(_COMMAND.findall(message)))


def wrap(text: str, width: int, indent: str = "  ") -> str:
    """Lines no longer than the width, except for single longer words."""
    return "\n".join(
        textwrap.fill(
            line,
            max(20, width),
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in text.splitlines()
    )
