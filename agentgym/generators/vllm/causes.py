"""Why vLLM did not start: its engine is another process, which only prints the reason."""

from __future__ import annotations

import re
from pathlib import Path

_ERROR = re.compile(r"(?:^|[\]\s])(\w*(?:Error|Exception): \S.*)$", re.MULTILINE)
_FOLLOWS = ("RuntimeError: Engine core initialization failed",)  # what is said because of it
_TAIL = 2**16  # bytes


def last_error(log: Path) -> str:
    """The last error that a log names; empty without one, or where there is no such file.

    log: where this process and those that it starts write, as /proc/self/fd/2 names it.
    """
    if not log.is_file():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL))
        text = file.read().decode(errors="replace")
    found = [line for line in _ERROR.findall(text) if not line.startswith(_FOLLOWS)]
    return found[-1] if found else ""
