"""Answers find whom they are for, and every way in which a call can end is told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import pickle
import weakref
from collections.abc import Awaitable, Callable

import pytest
from waiting import LONG_S, until

from agentgym.actors.replies import FULL, Answer, NotSent, Outbox, RemoteTraceback, Replies
from agentgym.errors import InfraError


class FakeReceiver:
    """A port into which the test puts what arrives; an exception is raised."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[object] = asyncio.Queue()

    def put(self, thing: object) -> None:
        self._arrived.put_nowait(thing)

    def recv(self) -> FakeReceiver:
        return self

    async def as_asyncio(self) -> object:
        thing = await self._arrived.get()
        if isinstance(thing, Exception):
            raise thing
        return thing


class TwoWords(Exception):
    """Is pickled, and can't be read back: it is made of two arguments and keeps one."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


async def answer(method: Callable[..., Awaitable[object]], *args: object) -> Answer:
    return await Answer.of(7, "Actor.method", method, pickle.dumps(args))


async def test_answers_in_any_order_and_late_or_broken_ones_reach_nobody_else() -> None:
    port = FakeReceiver()
    async with Replies(port) as replies:
        (first, one), (second, two), (late, given_up) = replies.expect(), replies.expect(), replies.expect()
        given_up.cancel()
        port.put(ValueError("no answer of ours"))
        port.put([Answer(number=late, body=pickle.dumps("late")), Answer(number=second, body=pickle.dumps("two"))])
        port.put([Answer(number=first, body=pickle.dumps("one"))])
        found = await asyncio.wait_for(asyncio.gather(one, two), LONG_S)
    assert [each.value() for each in found] == ["one", "two"]


async def test_what_is_put_in_one_turn_of_the_loop_goes_as_one_message_in_order() -> None:
    sent: list[list[int]] = []
    outbox = Outbox(sent.append)
    for number in (1, 2, 3):
        outbox.put(number)
    assert sent == []
    await asyncio.sleep(0)
    outbox.put(4)
    outbox.flush()
    outbox.put(5)
    await asyncio.sleep(0)
    assert sent == [[1, 2, 3], [4], [5]]


async def test_a_full_message_leaves_before_the_turn_ends() -> None:
    sent: list[list[int]] = []
    outbox = Outbox(sent.append)
    for number in range(FULL + 2):
        outbox.put(number)
    assert sent == [[*range(FULL)]]
    await asyncio.sleep(0)
    assert sent == [[*range(FULL)], [FULL, FULL + 1]]


async def test_what_may_wait_goes_with_what_may_not_or_when_its_time_is_over() -> None:
    sent: list[list[int]] = []
    outbox = Outbox(sent.append)
    outbox.put(1, within_s=LONG_S)
    outbox.put(2, within_s=2 * LONG_S)
    await asyncio.sleep(0)
    assert sent == []
    outbox.put(3)
    await asyncio.sleep(0)
    assert sent == [[1, 2, 3]]
    outbox.put(4, within_s=LONG_S)
    outbox.put(5, within_s=1e-3)
    await until(lambda: sent == [[1, 2, 3], [4, 5]])


async def test_a_call_that_did_not_leave_fails_at_once_and_alone() -> None:
    async with Replies(FakeReceiver()) as replies:
        (first, one), (second, two), (_, other) = replies.expect(), replies.expect(), replies.expect()
        two.cancel()
        replies.fail([(first, "run", b""), (second, "run", b"")], NotSent("the mesh is dead"))
        with pytest.raises(NotSent, match="the mesh is dead"):
            await one
        assert not other.done()


async def test_what_an_endpoint_raised_is_raised_with_its_place_as_cause() -> None:
    async def fails(number: int) -> None:
        raise ValueError(f"not {number}")

    with pytest.raises(ValueError, match="not 3") as raised:
        (await answer(fails, 3)).value()
    assert isinstance(raised.value.__cause__, RemoteTraceback) and "in fails" in str(raised.value.__cause__)


async def test_what_cannot_be_sent_is_told_in_words() -> None:
    async def returns_a_function() -> object:
        return lambda: 1

    async def raises_two_words() -> None:
        raise TwoWords("one ", "two")

    async def ends() -> None:
        raise SystemExit(3)

    for method, words in (
        (returns_a_function, r"Actor.method returned a function that can't be sent: "),
        (raises_two_words, "Actor.method raised TwoWords: one two"),
        (ends, "Actor.method was ended by SystemExit"),
    ):
        with pytest.raises(InfraError, match=words):
            (await answer(method)).value()


class Witness:
    """A weak reference can watch it."""


def test_an_error_of_an_actor_frees_the_frames_of_its_callers_without_a_collection() -> None:
    seen: list[weakref.ref[Witness]] = []

    def ask() -> None:
        held = Witness()
        seen.append(weakref.ref(held))
        Answer(number=0, body=pickle.dumps(ValueError("no")), trace="Traceback").value()

    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            ask()
        assert seen[0]() is None
    finally:
        gc.enable()
