"""The solution's side: loads the untrusted code and calls its entry function, for lines of JSON.

The process holds arguments and never an expected value. What it answers is believed only as what the
solution returned, so forging an answer is no more than returning it.
"""

from __future__ import annotations

import json
from typing import Callable, cast

from . import values
from .frames import LineReader, write_line
from .source import describe, execute

FILENAME = "<solution>"
MAX_QUESTION_BYTES = 1 << 23


def serve(payload: bytes, answers_fd: int, questions_fd: int | None) -> int:
    """Load the solution, make the calls of the payload, then those that the test side asks for.

    On answers_fd: a line for the load, then one a call. On questions_fd, a socket: a line in, a line out.
    """
    request = json.loads(payload)
    try:
        namespace = execute(request["code"], "solution", FILENAME)
        entry = cast("Callable[..., object]", namespace.get(request["entry"]))
        if entry is None:
            raise NameError("name '{}' is not defined".format(request["entry"]))
    except BaseException as error:
        write_line(answers_fd, describe(error, FILENAME))
        return 1
    write_line(answers_fd, ["ok"])
    for question in request["calls"]:
        write_line(answers_fd, answer(entry, question))
    if questions_fd is not None:
        questions = LineReader(questions_fd, MAX_QUESTION_BYTES)
        while True:
            try:
                asked = questions.next()
            except EOFError:
                break
            write_line(questions_fd, answer(entry, cast(list[values.Tree], asked)))
    return 0


def answer(entry: Callable[..., object], question: list[values.Tree]) -> list[values.Tree]:
    """Call the entry with [args, kwargs]: what it returned, raised, or returned that does not cross."""
    try:
        args = cast(list, values.decode(question[0]))  # type: ignore[type-arg]
        kwargs = cast(dict, values.decode(question[1]))  # type: ignore[type-arg]
        return ["r", values.encode(entry(*args, **kwargs))]
    except values.NotPlain as error:
        return ["n", error.kind]
    except BaseException as error:
        return cast(list[values.Tree], describe(error, FILENAME))
