"""A handler whose answers a test gives."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from agentgym.policies.conversation import CallAnswer, CallRequest
from agentgym.tools import ToolCall


def said(content: str = "hello", **fields) -> CallAnswer:
    given = {"reasoning": "", "calls": (), "finish": "stop"}
    given |= {"prompt_tokens": 10, "completion_tokens": 3, "cached_tokens": 4, **fields}
    return CallAnswer(content=content, **given)


CALLS = (ToolCall("add", {"a": 1}, "call1"), ToolCall("add", {"a": 2}, "call2"))


@dataclass
class FakeHandler:
    """Says `says` each time, or raises it; while `gate` is not set, calls wait for it."""

    says: CallAnswer | BaseException = field(default_factory=said)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    requests: list[CallRequest] = field(default_factory=list)
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    num_recorded: int = 0

    def __post_init__(self) -> None:
        self.gate.set()
        self.called = asyncio.Semaphore(0)

    async def call(self, request: CallRequest) -> CallAnswer:
        self.requests.append(request)
        self.called.release()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        if isinstance(self.says, BaseException):
            raise self.says
        self.num_recorded += 1
        return self.says

    def count(self, request: CallRequest) -> int:
        return sum(len(message["content"]) for message in request.messages)
