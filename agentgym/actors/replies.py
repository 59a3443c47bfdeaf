"""Calls and the answers of actors, which all come through one port of this process.

Monarch opens a port for every call, numbers the messages to every port, and forgets none: half a KiB stays in the
process that answers. One port for all calls leaves nothing. A message costs it a third of a millisecond, however much
is in it: what is called, or answered, in one turn of the event loop goes as one message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import pickle
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, Self, TypeAlias, TypeVar

from agentgym.errors import InfraError
from agentgym.observed import OBSERVED, State

log = logging.getLogger(__name__)

FULL = 32
"""What goes as one message at the most: the other end begins with it while the rest is being written."""
T = TypeVar("T")
Call: TypeAlias = tuple[int, str, bytes]
"""The number of its answer, the endpoint's name, and its arguments as a pickled tuple."""


class Keywords(dict[str, Any]):
    """The last of a call's arguments, where there are some by name."""


class NotSent(InfraError):
    """A call did not leave this process; it says what Monarch said."""


class RemoteTraceback(Exception):
    """Where the actor raised, as text: the cause of what its caller gets."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one call. body: the pickled value, or the pickled exception where trace is set.

    observed: what `record_metric` got in the actor's process since the last answer.
    """

    number: int
    body: bytes
    trace: str = ""
    observed: list[State] = field(default_factory=OBSERVED.to_send)

    @classmethod
    async def of(cls, number: int, name: str, method: Callable[..., Awaitable[object]], args: bytes) -> Answer:
        """Call the method in the actor's process. What it returns or raises that can't be sent is told in words."""
        try:
            given = pickle.loads(args)
            named = given[-1] if given and isinstance(given[-1], Keywords) else {}
            value = await method(*(given[:-1] if named else given), **named)
        except Exception as error:
            return cls._failed(number, error, f"{name} raised {type(error).__name__}: {error}")
        except BaseException as error:  # it would end the actor, and Monarch would tell nobody why
            return cls._failed(number, InfraError(f"{name} was ended by {type(error).__name__}"), "")
        try:
            return cls(number=number, body=pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            text = f"{name} returned a {type(value).__name__} that can't be sent: {error}"
            return cls._failed(number, InfraError(text), text)

    @classmethod
    def _failed(cls, number: int, error: Exception, words: str) -> Answer:
        trace = traceback.format_exc()
        try:
            body = pickle.dumps(error)
            pickle.loads(body)  # some are pickled and can't be read
        except Exception:
            body = pickle.dumps(InfraError(words))
        return cls(number=number, body=body, trace=trace)

    def value(self) -> Any:
        """What the endpoint returned. Raises what it raised."""
        if self.trace:  # not by a name: the error would lead to this frame, which would lead to the error
            raise pickle.loads(self.body) from RemoteTraceback(self.trace)
        return pickle.loads(self.body)


class Outbox(Generic[T]):
    """Collects what goes to one place until the event loop's next turn, or until FULL things wait."""

    def __init__(self, send: Callable[[list[T]], None]) -> None:
        self._send = send
        self._waiting: list[T] = []
        self._flush: asyncio.Handle | None = None
        self._flush_s = math.inf

    def put(self, thing: T, within_s: float = 0.0) -> None:
        """within_s: for which it may wait for others."""
        loop = asyncio.get_running_loop()
        self._waiting.append(thing)
        if len(self._waiting) == FULL:
            self.flush()
        elif (at_s := loop.time() + within_s if within_s else 0.0) < self._flush_s:
            if self._flush is not None:
                self._flush.cancel()
            self._flush = loop.call_at(at_s, self.flush) if at_s else loop.call_soon(self.flush)
            self._flush_s = at_s

    def flush(self) -> None:
        """Send it now, before a message that must come later."""
        if self._flush is not None:
            self._flush.cancel()
            self._flush, self._flush_s = None, math.inf
        if self._waiting:
            things, self._waiting = self._waiting, []
            self._send(things)


class Receiver(Protocol):
    """Monarch's end of a port."""

    def recv(self) -> Any: ...


class Replies:
    """Hands every answer to whom it is for. Use it as `async with`."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count()

    async def __aenter__(self) -> Self:
        self._reader = asyncio.create_task(self._read(), name="answers of actors")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._reader.cancel()
        await asyncio.wait({self._reader})

    def expect(self) -> tuple[int, asyncio.Future[Answer]]:
        """A number for the next call, and its answer. Cancel that when nobody waits for it any more."""
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        answer.add_done_callback(lambda _: self._waiting.pop(number, None))
        return number, answer

    async def _read(self) -> None:
        while True:
            try:
                answers: list[Answer] = await self._receiver.recv().as_asyncio()
            except Exception as error:  # no answer of ours: of which call, nobody can say
                log.warning("an answer of an actor could not be read: %s: %s", type(error).__name__, error)
                continue
            for answer in answers:
                OBSERVED.absorb(answer.observed)
                waiting = self._waiting.get(answer.number)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)

    def fail(self, calls: Sequence[Call], error: NotSent) -> None:
        """Fails the calls that were never sent."""
        for number, _, _ in calls:
            waiting = self._waiting.get(number)
            if waiting is not None and not waiting.done():
                waiting.set_exception(error)
