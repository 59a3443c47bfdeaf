"""Calls from one process, or from an actor, to actors elsewhere: sent together, answered through one port."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Self

from agentgym.actors.replies import Answer, Call, NotSent, Outbox, Replies


class Caller:
    """Use it as `async with`; an actor opens one of its own, in one of its endpoints."""

    def __init__(self) -> None:
        self._caller = uuid.uuid4().hex  # names the port, which is another object in each message
        self._outboxes: dict[int, Outbox[Call]] = {}  # by id() of the actor

    async def __aenter__(self) -> Self:
        from monarch.actor import Channel

        self._port, receiver = Channel.open()
        self._replies = await Replies(receiver).__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._replies.__aexit__(*error)

    def ask(self, actor: Any, name: str, args: bytes) -> asyncio.Future[Answer]:
        """Call an endpoint of a mesh of one LifecycleActor, from point to point. args: a pickled tuple.

        The answer raises NotSent for a mesh that Monarch has seen die.
        """
        number, answer = self._replies.expect()
        outbox = self._outboxes.get(id(actor))
        if outbox is None:
            self._outboxes[id(actor)] = outbox = Outbox(partial(self._send, actor))  # which keeps the actor, and its id
        outbox.put((number, name, args))
        return answer

    def flush(self) -> None:
        """Send the calls that wait for the event loop's next turn, before a message that must come later."""
        for outbox in self._outboxes.values():
            outbox.flush()

    def forget(self, actors: Sequence[Any]) -> None:
        """Nothing more is asked of them."""
        for actor in actors:
            self._outboxes.pop(id(actor), None)

    def _send(self, actor: Any, calls: list[Call]) -> None:
        from monarch.actor import send

        try:
            send(actor.agentgym_answer, (self._caller, calls), {}, self._port, "choose")
        except Exception as error:  # Monarch refuses to send to a mesh that it has seen die
            self._replies.fail(calls, NotSent(str(error)))
