"""A context without an episode, on which a test sees what an agent did."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agentgym.env import Reply
from agentgym.sandbox import FileRefused, RunResult, RunStatus

SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": ["by"]},
    },
}


collect_ignore_glob = [] if importlib.util.find_spec("smolagents") else ["test_shipped.py"]


@dataclass
class FakeSession:
    """Remembers what it was asked to run."""

    ran: list = field(default_factory=list)

    async def exec(self, command, *, stdin="", folder=".", limits=None):
        self.ran.append(command)
        return RunResult(status=RunStatus.OK, exit_code=0, stdout=stdin.upper(), stderr="")

    async def read(self, path, *, max_bytes=0):
        raise FileRefused(f"there is no {path}")


@dataclass
class FakeContext:
    """`replies`: of the environment to each answer; the last one ends the episode."""

    replies: tuple = ()
    url: str = "http://127.0.0.1:9"
    key: str = "the-key"
    model: str = "policy"
    seed: int = 5
    time_s: float = 60.0
    session: object = None
    tools: list = field(default_factory=lambda: [SCHEMA])
    messages: tuple = ({"role": "user", "content": "say {yes}"},)
    answers: list = field(default_factory=list)
    calls: list = field(default_factory=list)
    notes: dict = field(default_factory=dict)
    answered: asyncio.Event = field(default_factory=asyncio.Event)

    async def call_tool(self, name, arguments):
        self.calls.append((name, arguments))
        return f"{name} {arguments}"

    async def answer(self, text):
        self.answers.append(text)
        self.answered.set()
        told = self.replies[len(self.answers) - 1 : len(self.answers)]
        messages = tuple({"role": "user", "content": one} for one in told)
        self.messages += ({"role": "assistant", "content": text}, *messages)
        return Reply(messages=messages, done=not messages)

    def note(self, key, value):
        json.dumps(value, allow_nan=False)
        self.notes[key] = value


@pytest.fixture
def context():
    return FakeContext


@pytest.fixture
def session():
    return FakeSession()


@pytest.fixture
def is_gone():
    """Whether a process has ended. A zombie has: whoever adopted it has not waited for it yet."""

    def ask(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            return True

    return ask
