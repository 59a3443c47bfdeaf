"""Functions that play episodes in processes, for the tests beside it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

from agentgym.agents import AgentFailed
from agentgym.sandbox import FileRefused


def plain(desk, *, word="yes"):
    """Uses all of a desk."""
    assert desk.call_tool("add", {"by": 2}) == "add {'by': 2}"
    print("thinking")
    desk.note("pid", os.getpid())
    told = desk.answer(word).messages
    while told:
        told = desk.answer(f"{told[0]['content']}, so {word}; {len(desk.messages)}").messages


async def asynchronous(desk):
    """Two calls at once."""
    done = await asyncio.gather(desk.call_tool("add", {"by": 1}), desk.call_tool("add", {"by": 2}))
    assert (await desk.answer(" and ".join(sorted(done)))).done


def in_session(desk):
    """Works in the episode's sandbox."""
    ran = desk.session.exec("tr a-z A-Z", stdin="loud")
    try:
        desk.session.read("gone.txt")
    except FileRefused as refused:
        desk.answer(f"{ran.stdout} {ran.status} {refused}")


def fails(desk, *, how):
    """Does something wrong."""
    print("last words")
    if how == "raise":
        raise KeyError("odd")
    if how == "own":
        raise AgentFailed("gave_up", "it was too hard")
    if how == "exit":
        sys.exit(4)
    if how == "die":
        os._exit(5)
    if how == "shout":
        while True:
            sys.stdout.write("x" * 9999)
            desk.note("loud", True)
    if how == "odd note":
        desk.note("set", float("nan"))
        desk.answer("unreachable")
    desk.note("pid", os.getpid())
    child = subprocess.Popen([sys.executable, "-S", "-c", "import os, time; os.setsid(); time.sleep(99)"])
    desk.note("child", child.pid)
    if how == "leave":
        desk.answer("yes")
        return
    desk.answer("soon")
    time.sleep(99)
