"""The tests' side: runs hidden test source against a proxy of the solution, which lives in another process.

Only this process holds the verdict's descriptor. It sees plain builtin values, never the solution's objects.
"""

from __future__ import annotations

import builtins
import json
from typing import cast

from . import values
from .frames import LineReader, write_all, write_line
from .source import describe

FILENAME = "<test>"
MAX_ANSWER_BYTES = 1 << 23


class SolutionGone(BaseException):
    """The solution's process ended. No Exception: a test's own `except` must not hide it."""


class Proxy:
    """What the tests call in place of the solution's entry function."""

    def __init__(self, name: str, fd: int) -> None:
        self.__name__ = name
        self._fd = fd
        self._answers = LineReader(fd, MAX_ANSWER_BYTES)
        self.gone = False

    def __call__(self, *args: object, **kwargs: object) -> object:
        question = json.dumps([values.encode(list(args)), values.encode(kwargs)], separators=(",", ":"))
        kind, content = self._ask(question)
        if kind == "r":
            return content
        if kind == "n":
            raise TypeError(f"returned <{content}>, which is no plain value")
        name, message = cast(tuple[str, str], content)
        raise _exception_type(name)(message)

    def _ask(self, question: str) -> tuple[str, object]:
        """The answer's tag with its decoded content. Raises SolutionGone when there is no answer."""
        if not self.gone:
            try:
                write_all(self._fd, question.encode() + b"\n")
                reply = cast(list, self._answers.next())  # type: ignore[type-arg]
                if reply[0] == "r":
                    return "r", values.decode(reply[1])
                if reply[0] == "n":
                    return "n", str(reply[1])
                return "x", (str(reply[1]), str(reply[2]))
            except (EOFError, OSError, ValueError, TypeError, LookupError, RecursionError):
                self.gone = True  # it ended, or does not keep to the protocol
        raise SolutionGone


def _exception_type(name: str) -> type[Exception]:
    """The builtin exception of that name, if tests may meet it, else RuntimeError.

    A StopIteration out of the solution must not end an iteration of the tests' own.
    """
    found = getattr(builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        return RuntimeError
    if issubclass(found, (StopIteration, StopAsyncIteration, UnicodeError)):
        return RuntimeError  # UnicodeError: it wants five arguments
    return found


def judge(payload: bytes, verdict_fd: int, solution_fd: int) -> int:
    """Run the prelude and then every test; on verdict_fd, a line for the prelude and one a test."""
    request = json.loads(payload)
    proxy = Proxy(request["entry"], solution_fd)
    prelude: dict[str, object] = {"__name__": "tests"}
    try:
        exec(compile(request["prelude"], "<prelude>", "exec", dont_inherit=True), prelude)
    except BaseException as error:
        write_line(verdict_fd, describe(error, "<prelude>"))
        return 1
    write_line(verdict_fd, ["ok"])
    for source in request["sources"]:
        namespace = dict(prelude)
        namespace["candidate"] = namespace[request["entry"]] = proxy
        try:
            exec(compile(source, FILENAME, "exec", dont_inherit=True), namespace)
        except SolutionGone:
            pass
        except BaseException as error:
            write_line(verdict_fd, describe(error, FILENAME))
            continue
        if proxy.gone:
            break
        write_line(verdict_fd, ["pass"])
    return 0
