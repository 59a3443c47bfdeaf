"""How code ends in monty other than by an answer: it raised, ran out of something, or can't be run here."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from agentgym.python_syntax import parse_expression
from agentgym.sandbox import LimitHit, Limits, RunStatus, SandboxLost
from agentgym_sandboxes.host import wording
from agentgym_sandboxes.host.wording import Raised
from agentgym_sandboxes.monty.gaps import is_gap, syntax_error

if TYPE_CHECKING:
    from pydantic_monty import MontyError

UNSUPPORTED = "monty can't run it"
MIB = 1 << 20
_OVER_MEMORY = re.compile(r"memory limit exceeded: (\d+) bytes > (\d+) bytes")


class Unsupported(Exception):
    """The interpreter can't run the code."""


class Ended(Exception):
    """The code was ended: it says nothing more."""

    def __init__(self, status: RunStatus, text: str, limit: LimitHit | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.text = text
        self.limit = limit


def timed_out(limits: Limits) -> Ended:
    hit = LimitHit(resource="wall_s", used=limits.wall_s, allowed=limits.wall_s)
    return Ended(RunStatus.TIMEOUT, wording.timeout_text(limits.wall_s), hit)


def raised_of(error: MontyError, limits: Limits, code: str) -> Raised:
    """What the code raised. Raises Ended or Unsupported when it was not an exception of the code's own."""
    from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError

    if isinstance(error, MontyCrashedError):
        if error.timed_out:
            raise timed_out(limits)
        raise Unsupported("the interpreter crashed")
    if isinstance(error, MontySyntaxError):
        refused = syntax_error(code)
        if refused is None:
            raise Unsupported(str(error))
        return refused
    if not isinstance(error, MontyRuntimeError):
        raise SandboxLost(f"monty failed: {error}")
    exception = error.exception()
    message = str(exception)
    if isinstance(exception, TimeoutError) and message.startswith("feed time limit exceeded"):
        raise timed_out(limits)
    if isinstance(exception, MemoryError) and message.endswith("was terminated"):
        hit = LimitHit(resource="memory_mib", used=limits.memory_mib, allowed=limits.memory_mib)
        raise Ended(RunStatus.OOM, wording.OOM_TEXT, hit)  # its process is gone, and all that it held
    frames = error.traceback()
    return Raised(type(exception).__name__, message, frames[-1].line if frames else 0)


def memory_hit(raised: Raised) -> LimitHit | None:
    """The limit on memory, when that is what was raised: the interpreter says so in bytes."""
    found = _OVER_MEMORY.match(raised.message) if raised.kind == "MemoryError" else None
    if found is None:
        return None
    asked, allowed = (int(number) / MIB for number in found.groups())
    return LimitHit(resource="memory_mib", used=asked, allowed=allowed)


def refuse_gaps(raised: Iterable[Raised], code: str = "") -> None:
    """code: what a policy wrote, if it did, which may claim to be a gap."""
    for one in raised:
        if is_gap(one, code):
            raise Unsupported(wording.error_text(one))


def refuse_unknown_name(raised: Raised) -> None:
    """Elsewhere a test also sees the solution's other names."""
    if raised.kind == "NameError":
        raise Unsupported(wording.error_text(raised))


def _key(message: str) -> object:
    """A KeyError's message is its key as `repr` shows it."""
    try:
        return cast(object, ast.literal_eval(parse_expression(message.lstrip(" \t"))))
    except (ValueError, SyntaxError):
        return message


def builtin_exception(raised: Raised) -> Exception:
    """The exception for a test to meet. Raises Unsupported for a class that one string can't make, or whose raising
    would end more than the test."""
    kind = getattr(builtins, raised.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, BaseException):
        return RuntimeError(raised.message)
    if issubclass(kind, (StopIteration, StopAsyncIteration, GeneratorExit)):  # as elsewhere: not to end an iteration
        return RuntimeError(raised.message)
    if issubclass(kind, UnicodeError) or not issubclass(kind, Exception):
        raise Unsupported(f"it raised {raised.kind}, which only full Python hands to a test")
    return kind(_key(raised.message) if kind is KeyError else raised.message)
