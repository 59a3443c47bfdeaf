"""What a process printed last: the lines of its error, not the frames of a trace."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

READ_BYTES = 1 << 17  # a Rust backtrace may have 20 KiB
SHOWN = 2000  # characters
_BEGINS = re.compile(
    r"(Exception Group )?Traceback \(most recent call last\):|stack backtrace:|.*\(most recent call first\):"
    r"|.*Exception raised from .* \(most recent call first\):",
    re.IGNORECASE,
)
_OF_GROUP = re.compile(r"\s*[|+] ?")  # before each line of an ExceptionGroup
_FRAME = re.compile(r"\s|frame #\d+: |[-+]+ ")


def last_output(log: Path, begin: int = 0) -> str:
    """The end of a log without its traces; empty where there is none. begin: where the process's part begins."""
    with contextlib.suppress(OSError), log.open("rb") as file:
        file.seek(max(begin, log.stat().st_size - READ_BYTES))
        text = file.read().decode(errors="replace").strip()
        return (without_traces(text) or text)[-SHOWN:]
    return ""


def without_traces(text: str) -> str:
    """Removes the frames of Python, Rust and C++ traces; the line of the error precedes or follows them."""
    kept, in_trace = [], False
    for line in text.splitlines():
        plain = _OF_GROUP.sub("", line, count=1) if _OF_GROUP.match(line) else line
        if _BEGINS.fullmatch(plain.rstrip()):
            in_trace = True
        elif not in_trace or not _FRAME.match(plain):
            in_trace = in_trace and not plain.strip()
            kept.append(plain)
    return "\n".join(kept).strip()
