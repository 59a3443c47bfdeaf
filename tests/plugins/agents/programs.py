"""Functions that play episodes in processes, for the tests beside it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import Request, urlopen

from agentgym.agents import AgentFailed
from agentgym.sandbox import FileRefused


def plain(context, *, word="yes"):
    """Uses all of a context."""
    assert context.call_tool("add", {"by": 2}) == "add {'by': 2}"
    print("thinking")
    context.note("pid", os.getpid())
    told = context.answer(word).messages
    while told:
        told = context.answer(f"{told[0]['content']}, so {word}; {len(context.messages)}").messages


async def asynchronous(context):
    """Two calls at once."""
    done = await asyncio.gather(context.call_tool("add", {"by": 1}), context.call_tool("add", {"by": 2}))
    assert (await context.answer(" and ".join(sorted(done)))).done


def in_session(context):
    """Works in the episode's sandbox."""
    ran = context.session.exec("tr a-z A-Z", stdin="loud")
    try:
        context.session.read("gone.txt")
    except FileRefused as refused:
        context.answer(f"{ran.stdout} {ran.status} {refused}")


def fails(context, *, how):
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
            context.note("loud", True)
    if how == "odd note":
        context.note("set", float("nan"))
        context.answer("unreachable")
    if how == "no text":
        context.answer(None)
    context.note("pid", os.getpid())
    child = subprocess.Popen([sys.executable, "-S", "-c", "import os, time; os.setsid(); time.sleep(99)"])
    context.note("child", child.pid)
    if how == "leave":
        context.answer("yes")
        return
    context.answer("soon")
    time.sleep(99)


def repeats(context):
    """Asks the policy for each answer."""
    done = False
    while not done:
        done = context.answer(asked(f"{context.url}/v1", context.key, context.messages)).done


def asked(base_url, key, messages):
    body = json.dumps({"model": "policy", "messages": list(messages)}).encode()
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    with urlopen(Request(f"{base_url}/chat/completions", body, headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]


if __name__ == "__main__":  # as a command
    task = json.loads(Path(os.environ["AGENTGYM_TASK"]).read_text())
    print(asked(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], task["messages"]))
