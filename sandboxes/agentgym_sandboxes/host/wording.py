"""How an error reads to the agent: one line, the same words whatever interpreter raised it."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

MAX_MESSAGE_CHARS = 200
MAX_READ_CHARS = 500  # of an exception's words: untrusted code wrote them, and patterns are matched with them
NOT_REACHED = "not reached"
OOM_TEXT = "ran out of memory"
OUTPUT_TEXT = "returned more than a sandbox takes"
FLOOD_TEXT = "printed more than a sandbox takes"
DISK_TEXT = "ran out of disk space"
PROCESS_TEXT = "started too many processes"

_SAME_WORDS = (
    # Python's versions and interpreters word these differently; agents are trained on one wording.
    (
        "ZeroDivisionError",
        re.compile(r"^(?!division by zero$).*(division|modulo|negative power).*$"),
        "division by zero",
    ),
    ("KeyError", re.compile(r"^'(-?\d+)'$"), r"\1"),
    ("ValueError", re.compile(r"^(too many values to unpack \(expected \d+), got \d+\)$"), r"\1)"),
    ("ValueError", re.compile(r"^(max|min)\(\) arg is an empty sequence$"), r"\1() iterable argument is empty"),
    ("ValueError", re.compile(r"^.* is not in list$"), "list.index(x): x not in list"),
    ("TypeError", re.compile(r"^cannot use .* \((unhashable type: .*)\)$"), r"\1"),
    ("TypeError", re.compile(r"^(argument of type .*) is not a container or iterable$"), r"\1 is not iterable"),
    ("RecursionError", re.compile(r"^.*$"), "maximum recursion depth exceeded"),
    ("MemoryError", re.compile(r"^.*$"), ""),
)
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception out of untrusted code. line: of that code, 1-based; 0 when it is not known."""

    kind: str
    message: str
    line: int = 0


def raised_text(raised: Raised) -> str:
    return f"raised {error_text(raised)}"


def error_text(raised: Raised) -> str:
    """An exception in one line: 'ZeroDivisionError: division by zero'; a syntax error with its line."""
    message = " ".join(raised.message[:MAX_READ_CHARS].split())
    for kind, pattern, words in _SAME_WORDS:
        if raised.kind == kind:
            message = pattern.sub(words, message, count=1)
    if raised.kind in _SYNTAX_ERRORS and raised.line:
        message = f"{message} (line {raised.line})"
    kind, message = one_line(raised.kind, MAX_MESSAGE_CHARS), one_line(message, MAX_MESSAGE_CHARS)
    return f"{kind}: {message}" if message else kind


def last_line_text(line: str) -> str:
    """The last line that a program wrote to its standard error, as `error_text` words an exception."""
    kind, _, message = line.strip().partition(": ")
    return error_text(Raised(kind, message)) if kind.isidentifier() else cut(line.strip(), MAX_MESSAGE_CHARS)


def timeout_text(wall_s: float) -> str:
    return f"timed out after {wall_s:g} s"


def exit_text(code: int) -> str:
    """How a process ended that left a case unanswered. code: negative for a signal."""
    if code >= 0:
        return f"its process ended with exit code {code} before it returned"
    return f"its process was ended by {signal_name(-code)}"


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def one_line(text: str, max_chars: int) -> str:
    """Untrusted words as they may go to a model and into files: on one line, half characters escaped, cut."""
    text = " ".join(text.split())
    return cut(text.encode("utf-8", "backslashreplace").decode(), max_chars)


def cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 3] + "..."
