"""What a command is given: where it writes, and the installed plugins."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import Protocol, TextIO

from agentgym.commands.output import Output
from agentgym.commands.text import table_lines
from agentgym.hooks import PluginRegistry

PIPED_WIDTH = 100


class FindPlugins(Protocol):
    def __call__(self, disabled: Sequence[str] = ()) -> PluginRegistry: ...


def can_redraw(stream: TextIO) -> bool:
    """Whether it is a terminal with colours and a cursor. Commands of a notebook get one whose lines only stay."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and "JPY_PARENT_PID" not in os.environ


@dataclass(frozen=True, slots=True, kw_only=True)
class Shell:
    """Output streams and plugins of one command. plugins: discovers them; tests replace it."""

    out: TextIO
    err: TextIO
    plugins: FindPlugins

    @property
    def is_terminal(self) -> bool:
        return can_redraw(self.out)

    @property
    def width(self) -> int:
        """Columns of the terminal; a fixed width for a pipe."""
        return shutil.get_terminal_size((PIPED_WIDTH, 24)).columns if self.is_terminal else PIPED_WIDTH

    @property
    def paint(self) -> Paint:
        return Paint(self.is_terminal and not os.environ.get("NO_COLOR"))

    def goes_on(self) -> None:
        """Marks that work continues from here on, whether or not anyone reads the output."""
        if isinstance(self.out, Output):
            self.out.needed = False

    def say(self, text: str = "") -> None:
        print(text, file=self.out, flush=True)

    def say_json(self, value: object) -> None:
        self.say(json.dumps(value, indent=1, default=str))

    def say_table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        lines = table_lines(header, rows)
        self.say("\n".join([self.paint.bold(lines[0]), *lines[1:]]))

    def warn(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print(text, file=self.err, flush=True)


@dataclass(frozen=True, slots=True)
class Paint:
    """Colours, where the terminal shows them."""

    enabled: bool

    def _with(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled and text else text

    bold = partialmethod(_with, "1")
    dim = partialmethod(_with, "2")
    red = partialmethod(_with, "31")
    green = partialmethod(_with, "32")
    yellow = partialmethod(_with, "33")
    cyan = partialmethod(_with, "36")
