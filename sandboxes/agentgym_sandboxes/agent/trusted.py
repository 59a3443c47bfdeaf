"""Judges a trusted solution in one process, as a program: a line of JSON for the load, for each call and each test.

What the solution does to this process, it does to its verdict: nothing here holds a dishonest one back.
"""

from __future__ import annotations

import json
import os
import sys

from .channel import send
from .frames import write_line
from .judge import FILENAME as TEST
from .judge import PRELUDE
from .operations import TESTS_MODULE
from .serve import FILENAME, answer, find_entry
from .source import describe, execute

STARTED = "agentgym"


def main(argv: list[str]) -> None:
    """Judge the request on standard input. What the solution prints goes nowhere."""
    request = json.loads(sys.stdin.buffer.read())
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(null, fd)
    write_line(out, STARTED)
    try:
        namespace = execute(request["code"], "solution", FILENAME)
        entry, root = find_entry(namespace, request["entry"]) if request["entry"] else (None, None)
    except BaseException as error:
        send(out, describe(error, FILENAME))
        return
    send(out, ["ok"])
    for question in request["calls"]:
        send(out, answer(entry, question))  # type: ignore[arg-type]  # calls have an entry
    own = {request["entry"].partition(".")[0]: root, "candidate": entry}
    names = {name: value for name, value in namespace.items() if not name.startswith("__")}
    names = {**names, "__name__": TESTS_MODULE, **own}
    try:
        exec(compile(request["prelude"], PRELUDE, "exec", dont_inherit=True), names)
    except BaseException as error:
        send(out, describe(error, PRELUDE))
        return
    names.update(own)
    send(out, ["ok"])
    for source in request["sources"]:
        try:
            exec(compile(source, TEST, "exec", dont_inherit=True), dict(names))
        except BaseException as error:
            send(out, describe(error, TEST))
        else:
            send(out, ["pass"])
