"""The solution's side: loads the untrusted code and calls its entry function, for lines of JSON.

The process holds arguments and never an expected value. What it answers is believed only as what the
solution returned, so forging an answer is no more than returning it.
"""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any, Callable

from . import values
from .channel import Channel, send
from .link import Link, lend_all
from .source import describe, execute

FILENAME = "<solution>"
MAX_HEARD_BYTES = 1 << 30  # of the tests, which are trusted
NO_MEMORY = 79  # the exit code when not even that could be reported

Entry = Callable[..., object]


def serve(payload: bytes, answers_fd: int, questions_fd: int | None) -> int:
    """Load the solution, make the calls of the payload, then those that the test side asks for.

    On answers_fd: a line for the load, then one a call. On questions_fd, a socket: the end of a link.
    """
    request = json.loads(payload)
    try:
        namespace = execute(request["code"], "solution", FILENAME)
        entry, root = find_entry(namespace, request["entry"])
    except BaseException as error:
        send(answers_fd, describe(error, FILENAME))
        return 1
    send(answers_fd, ["ok"])
    for question in request["calls"]:
        try:
            send(answers_fd, answer(entry, question))
        except MemoryError as error:  # it fitted, but not a second time as text
            send(answers_fd, describe(error, FILENAME))
    if questions_fd is not None:
        link = Link(Channel(questions_fd, MAX_HEARD_BYTES), lend_all)
        for value in (entry, _Names(namespace), root):  # the places that both sides know: ENTRY, NAMES, ROOT
            link.hold(value)
        link.answer_all()
    return 0


def find_entry(namespace: dict[str, object], entry: str) -> tuple[Entry, object]:
    """The callable under test, and the object that the first part of a dotted name refers to.

    `Solution.method` makes an instance for every call. Raises NameError or AttributeError.
    """
    first, *rest = entry.split(".")
    root: Any = namespace.get(first)
    if root is None:
        raise NameError(f"name '{first}' is not defined")
    owner, found = None, root
    for name in rest:
        owner, found = found, getattr(found, name)
    if not isinstance(owner, type):
        return found, root
    kind, method = owner, rest[-1]

    def call(*args: object, **kwargs: object) -> object:
        return getattr(kind(), method)(*args, **kwargs)

    return call, root


def answer(entry: Entry, question: list[Any]) -> list[Any]:
    """Call the entry with [args, kwargs, whether to read an iterator, whether to report the arguments after the call].

    The answer is what it returned, raised, or returned that does not cross; then the arguments, when asked for.
    """
    args, kwargs, as_list, returns_args = question
    reader = values.Reader()
    try:
        given = reader.value(args)
        found = entry(*given, **reader.value(kwargs))  # type: ignore
        if as_list and hasattr(type(found), "__next__"):
            found = list(found)  # type: ignore[call-overload]
        frame: list[Any] = ["r", _data(found)]
        return [*frame, _left(given)] if returns_args else frame
    except values.NotPlain as error:
        return ["n", error.kind]
    except BaseException as error:
        return describe(error, FILENAME)


def _left(given: object) -> values.Tree:
    """The arguments after the call; what does not cross any more, by the name of its type."""
    try:
        return ["r", _data(given)]
    except values.NotPlain as error:
        return ["n", error.kind]


def _data(value: object) -> values.Tree:
    return values.Writer(foreign=values.lower).tree(value)


class _Names:
    """The solution's names, for tests that use more of it than its entry."""

    def __init__(self, namespace: dict[str, object]) -> None:
        self.__dict__.update(namespace)

    def __call__(self) -> tuple[str, ...]:
        return tuple(name for name, value in vars(self).items() if type(value) is not ModuleType)
