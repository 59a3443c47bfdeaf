"""A request that is sent again is one call; two that are equal by intention are two."""

from __future__ import annotations

import asyncio
import json

import pytest
from handlers import FakeHandler, said

from agentgym.policies.conversation import CallRefused, CallRequest
from agentgym.serve.app import make_app
from agentgym.serve.retries import MAX_BODIES, Retries

pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the endpoint that they share
REQUEST = CallRequest(messages=({"role": "user", "content": "hi"},))
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
AGAIN = {"x-stainless-retry-count": "1"}


def ask(retries: Retries, handler: FakeHandler, *, marked: bool = False, body: int = 1):
    return retries.find(body, marked=marked) or retries.begin(body, handler.call(REQUEST))


async def answered(retries: Retries, handler: FakeHandler, *, reached: bool):
    call = ask(retries, handler)
    await call.task
    retries.leave(call, reached=reached)
    return call


async def test_a_marked_retry_of_what_was_answered_gets_the_same_answer_and_an_unmarked_call_its_own(handler) -> None:
    retries = Retries()
    first = await answered(retries, handler, reached=True)
    assert ask(retries, handler, marked=True) is first
    assert ask(retries, handler) is not first
    assert ask(retries, handler, marked=True, body=2) is not first


async def test_an_answer_that_reached_nobody_is_the_next_equal_calls_marked_or_not(handler) -> None:
    retries = Retries()
    lost = await answered(retries, handler, reached=False)
    again = ask(retries, handler)
    assert again is lost
    retries.leave(again, reached=True)
    assert ask(retries, handler) is not lost


async def test_a_marked_retry_joins_the_call_under_way_which_lives_as_long_as_one_waits(handler) -> None:
    handler.gate.clear()
    retries = Retries()
    first = ask(retries, handler)
    assert ask(retries, handler, marked=True) is first
    retries.leave(first, reached=False)
    handler.gate.set()
    assert (await first.task) == handler.says
    assert len(handler.requests) == 1


async def test_equal_calls_at_once_are_siblings_of_which_one_can_be_lost_and_asked_again(handler) -> None:
    handler.gate.clear()
    retries = Retries()
    siblings = [ask(retries, handler) for _ in range(3)]
    assert len(set(map(id, siblings))) == 3
    retries.leave(siblings[1], reached=False)  # its client went away
    again = ask(retries, handler, marked=True)
    assert again not in siblings  # or two of three would be one
    handler.gate.set()
    await asyncio.gather(*(call.task for call in (siblings[0], siblings[2], again)))
    assert siblings[1].task.cancelled() and handler.num_recorded == 3


async def test_a_refusal_is_not_remembered(handler) -> None:
    handler.says = CallRefused("unavailable", "no generator")
    retries = Retries()
    call = ask(retries, handler)
    with pytest.raises(CallRefused):
        await call.task
    retries.leave(call, reached=True)
    handler.says = said()
    assert await ask(retries, handler, marked=True).task == handler.says


async def test_a_key_remembers_so_many_bodies_and_no_more(handler) -> None:
    retries = Retries()
    for body in range(MAX_BODIES + 5):
        call = ask(retries, handler, body=body)
        await call.task
        retries.leave(call, reached=True)
    assert retries.find(0, marked=True) is None
    assert retries.find(MAX_BODIES + 4, marked=True) is call


async def test_a_client_that_is_gone_when_its_answer_is_ready_leaves_it_to_the_next(endpoint, client, handler) -> None:
    """The route is called as a server calls it: only so the two come at once."""
    gone = asyncio.Event()
    body = json.dumps(BODY).encode()
    headers = [(b"authorization", client.headers["authorization"].encode())]
    received = iter([{"type": "http.request", "body": body}])
    sent = []

    async def receive():
        for message in received:
            return message
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers, "query_string": b"", "root_path": ""}
    handler.gate.clear()
    request = asyncio.create_task(make_app(endpoint._gate, "policy")(scope, receive, send))
    await handler.called.acquire()
    handler.gate.set()
    gone.set()
    await request
    assert sent == [] and handler.num_recorded == 1
    answer = await client.post(CHAT, content=body)
    assert answer.status_code == 200 and handler.num_recorded == 1


async def test_over_the_wire_a_cut_connection_is_sampled_again_and_a_marked_repetition_is_not(client, handler) -> None:
    handler.gate.clear()
    first = asyncio.create_task(client.post(CHAT, json=BODY))
    await handler.called.acquire()
    first.cancel()
    await asyncio.wait_for(handler.cancelled.wait(), 60)
    handler.gate.set()
    whole = await client.post(CHAT, json=BODY, headers=AGAIN)
    again = await client.post(CHAT, json=BODY, headers=AGAIN)
    assert again.json() == whole.json()  # with its id
    assert (len(handler.requests), handler.num_recorded) == (2, 1)
    sibling = await client.post(CHAT, json=BODY)
    assert sibling.json()["id"] != whole.json()["id"] and handler.num_recorded == 2
