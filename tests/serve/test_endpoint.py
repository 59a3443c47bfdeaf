"""Keys, limits, streams, clients that go away, and the end of the endpoint: over real connections."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import signal
import socket

import httpx
import pytest
from handlers import FakeHandler, said

from agentgym.errors import InfraError, UserError
from agentgym.hooks import PluginRegistry
from agentgym.policies.conversation import CallRefused
from agentgym.recipe import build_recipe
from agentgym.run.serving import serve
from agentgym.runs.report import PlainReporter
from agentgym.serve.endpoint import Endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")  # of the endpoint that they share
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
GEMINI, GEMINI_STREAM = "/v1beta/models/m:generateContent", "/v1beta/models/m:streamGenerateContent?alt=sse"
TALK = [{"role": "user", "content": "hi"}]
BODIES = {
    CHAT: {"model": "m", "messages": TALK},
    RESPONSES: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "messages": TALK, "max_tokens": 9},
    GEMINI: {"contents": [{"parts": [{"text": "hi"}]}]},
}
PATHS = pytest.mark.parametrize("path", list(BODIES))


def streamed(path: str, stream: bool = True) -> tuple[str, dict]:
    """A request's path and body."""
    if path == GEMINI:
        return GEMINI_STREAM if stream else path, BODIES[path]
    return path, {**BODIES[path], "stream": stream}


def told(answer: httpx.Response) -> dict:
    """An error of any dialect."""
    return answer.json()["error"]


@PATHS
async def test_a_key_opens_its_own_handler_and_no_key_or_another_opens_nothing(path, endpoint, connect) -> None:
    handlers = [FakeHandler(said(text)) for text in ("one", "two")]
    for handler in handlers:
        answer = await connect(endpoint.admit(handler)).post(path, json=BODIES[path])
        assert handler.says.content in answer.text
    for header in ("x-api-key", "x-goog-api-key"):
        by_header = await connect("").post(path, json=BODIES[path], headers={header: endpoint.admit(handlers[0])})
        assert by_header.status_code == 200
    for key in ("", "sk-guessed"):
        assert (await connect(key).post(path, json=BODIES[path])).status_code == 401
    assert [len(handler.requests) for handler in handlers] == [3, 1]


@PATHS
async def test_a_concluded_key_is_refused_and_what_is_under_way_is_cancelled(path, endpoint, connect, handler) -> None:
    key = endpoint.admit(handler)
    client = connect(key)
    handler.gate.clear()
    waiting = asyncio.create_task(client.post(path, json=BODIES[path]))
    await handler.called.acquire()
    endpoint.conclude(key)
    endpoint.conclude(key)
    answer = await waiting
    assert (answer.status_code, answer.headers["x-should-retry"]) == (409, "false")
    assert handler.cancelled.is_set()
    assert (await client.post(path, json=BODIES[path])).status_code == 409
    assert (await client.get("/v1/models")).status_code == 409
    assert len(handler.requests) == 1


@PATHS
@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (CallRefused("context_length", "12 tokens, 8 are allowed"), 400, "12 tokens"),
        (CallRefused("invalid", "messages: no", param="messages"), 400, "messages"),
        (CallRefused("ended", "the episode is over"), 409, "over"),
        (CallRefused("unavailable", "no generator answers"), 503, "generator"),
        (InfraError("no generator answers"), 503, "generator"),
    ],
)
async def test_a_refused_call_has_its_status_streamed_or_not(path, error, status, words, client, handler) -> None:
    handler.says = error
    for stream in (False, True):
        where, body = streamed(path, stream)
        answer = await client.post(where, json=body)
        assert answer.status_code == status and words in told(answer)["message"]


async def test_a_bug_of_the_handler_is_no_answer_and_comes_out_where_the_key_is_concluded(
    endpoint, connect, handler
) -> None:
    handler.says = ZeroDivisionError("secret")
    key = endpoint.admit(handler)
    answer = await connect(key).post(CHAT, json=BODIES[CHAT])
    assert answer.status_code == 500 and "secret" not in answer.text
    with pytest.raises(ZeroDivisionError):
        endpoint.conclude(key)


@PATHS
async def test_a_stream_that_waits_is_kept_alive_and_then_ends_with_the_whole_turn(path, client, handler) -> None:
    handler.gate.clear()
    pieces = []
    where, body = streamed(path)
    async with client.stream("POST", where, json=body) as answer:
        async for piece in answer.aiter_text():
            pieces.append(piece)
            handler.gate.set()  # the first comment came before there was an answer
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert pieces[0].startswith(": keep-alive\n\n")
    assert "hello" in "".join(pieces[1:])


@PATHS
async def test_an_error_after_a_streams_beginning_is_its_last_event(path, client, handler) -> None:
    handler.gate.clear()
    handler.says = CallRefused("context_length", "12 tokens")
    text = ""
    where, body = streamed(path)
    async with client.stream("POST", where, json=body) as answer:
        async for piece in answer.aiter_text():
            text += piece
            handler.gate.set()
    assert answer.status_code == 200 and "context_length_exceeded" in text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_cancels_its_call(stream, client, handler, endpoint) -> None:
    handler.gate.clear()
    waiting = asyncio.create_task(client.post(CHAT, json={**BODIES[CHAT], "stream": stream}))
    await handler.called.acquire()
    waiting.cancel()
    await asyncio.wait_for(handler.cancelled.wait(), 60)
    assert handler.num_recorded == 0 and endpoint.metrics()["serve/calls_running"] == 0


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"model": NaN}', {}, 400),
        (b"[" * 50_000, {}, 400),
        (b"\xff", {}, 400),
        (b"1" * 5000, {}, 400),
        (b"{}", {}, 400),
        (b" " * 100_001, {}, 413),
        (b"{}", {"content-encoding": "gzip"}, 415),
    ],
)
async def test_a_body_that_is_no_request_is_refused(body, headers, status, client, handler) -> None:
    for path in BODIES:
        answer = await client.post(path, content=body, headers=headers)
        assert answer.status_code == status and told(answer)["message"]
    assert handler.requests == []


async def test_a_body_without_an_end_is_cut_off(client) -> None:
    async def endless():
        while True:
            yield b" " * 65536

    async with asyncio.timeout(60):
        for headers, status in (({}, 413), ({"authorization": "Bearer guessed"}, 401)):
            with contextlib.suppress(httpx.TransportError):  # it may still be sending when the connection is closed
                assert (await client.post(CHAT, content=endless(), headers=headers)).status_code == status


@pytest.mark.parametrize("one", [b"[]", b"{}", b"0.5"])
async def test_a_body_of_many_small_values_is_refused_before_it_is_read(one: bytes, handler) -> None:
    async with Endpoint() as endpoint:
        body = b'{"messages": [' + b",".join([one] * 1_000_000) + b"]}"
        headers = {"x-api-key": endpoint.admit(handler)}
        async with httpx.AsyncClient(base_url=endpoint.url, headers=headers, verify=False) as client:
            answer = await client.post(CHAT, content=body)
            assert answer.status_code == 400 and "more than 500000 values" in told(answer)["message"]


async def test_the_bodies_that_a_key_sends_at_once_are_bounded_together(endpoint, connect, handler, client) -> None:
    held = asyncio.Event()

    async def slow():
        yield b" " * 60_000
        await held.wait()
        yield json.dumps(BODIES[CHAT]).encode()

    key = endpoint.admit(handler)
    first = asyncio.create_task(connect(key).post(CHAT, content=slow()))
    async with asyncio.timeout(30):
        while (await connect(key).post(CHAT, content=b" " * 60_000)).status_code != 413:
            pass  # until the first has come so far
    assert (await client.post(CHAT, json=BODIES[CHAT])).status_code == 200, "another key is not concerned"
    held.set()
    assert (await first).status_code == 200
    assert (await connect(key).post(CHAT, content=b" " * 60_000)).status_code == 400, "not JSON, and not too large"


async def test_models_tokens_and_unknown_paths(endpoint, client, connect) -> None:
    for path in ("/", "/api/hello"):  # Claude Code asks before it has a key
        assert (await connect("").head(path)).status_code == 200
    assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["policy"]
    assert (await client.get("/v1/models/policy")).json()["id"] == "policy"
    body = {"model": "m", "messages": TALK}
    assert (await client.post("/v1/messages/count_tokens", json=body)).json() == {"input_tokens": 2}
    assert [model["name"] for model in (await client.get("/v1beta/models")).json()["models"]] == ["models/policy"]
    assert (await client.get("/v1beta/models/a/b")).json()["name"] == "models/a/b"
    counted = {"generateContentRequest": {"model": "models/m", **BODIES[GEMINI]}}
    for body in (counted, BODIES[GEMINI]):
        assert (await client.post("/v1beta/models/m:countTokens", json=body)).json() == {"totalTokens": 2}
    for method, path, status in (("GET", CHAT, 405), ("POST", "/v1/chat", 404)):
        answer = await client.request(method, path)
        assert answer.status_code == status and CHAT in told(answer)["message"]


async def test_a_key_in_a_query_opens_googles_paths_and_no_others(endpoint, connect, handler) -> None:
    key, stranger = endpoint.admit(handler), connect("")
    for path in (GEMINI, "/v1/models/m:generateContent"):
        assert (await stranger.post(f"{path}?key={key}", json=BODIES[GEMINI])).status_code == 200
    [whole] = (await stranger.post(f"/v1beta/models/m:streamGenerateContent?key={key}", json=BODIES[GEMINI])).json()
    assert whole["candidates"][0]["content"]["parts"] == [{"text": "hello"}] and whole["modelVersion"] == "m"
    for version in ("v1", "v1beta"):  # Google's client asks for one of them, by its own version
        assert (await stranger.get(f"/{version}/models?key={key}")).json()["models"][0]["name"] == "models/policy"
    for path, status in ((f"{CHAT}?key={key}", 401), (f"{GEMINI}?key=guessed", 401), ("/v1beta/models", 404)):
        assert (await stranger.post(path, json=BODIES[GEMINI])).status_code == status
    assert (await stranger.get("/v1beta/models?key=guessed")).json()["error"]["status"] == "UNAUTHENTICATED"
    handler.says = CallRefused("context_length", "12 tokens")
    [refused] = (await stranger.post(f"/v1beta/models/m:streamGenerateContent?key={key}", json=BODIES[GEMINI])).json()
    assert refused["error"]["status"] == "INVALID_ARGUMENT"


async def test_closing_answers_those_who_wait_and_leaves_no_task_connection_or_handler(tmp_path) -> None:
    before, installed = asyncio.all_tasks(), signal.getsignal(signal.SIGTERM)
    handler = FakeHandler()
    handler.gate.clear()
    bind = f"unix:{tmp_path}/agents.sock"
    async with Endpoint(bind) as endpoint:
        assert endpoint.url == bind and signal.getsignal(signal.SIGTERM) is installed
        transport = httpx.AsyncHTTPTransport(uds=f"{tmp_path}/agents.sock")
        headers = {"x-api-key": endpoint.admit(handler)}
        client = httpx.AsyncClient(transport=transport, base_url="http://endpoint", headers=headers)
        waiting = asyncio.create_task(client.post(CHAT, json=BODIES[CHAT]))
        await handler.called.acquire()
        _, deaf = await asyncio.open_unix_connection(f"{tmp_path}/agents.sock")  # sends half a request, and waits
        deaf.write(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: %s\r\n" % headers["x-api-key"].encode())
        deaf.write(b"content-length: 9\r\n\r\n{")
        await deaf.drain()
    assert (await waiting).status_code == 503
    await client.aclose()
    deaf.close()
    assert asyncio.all_tasks() == before and list(tmp_path.iterdir()) == []


async def test_an_address_where_it_cannot_listen_is_the_users_mistake(endpoint, tmp_path) -> None:
    taken = endpoint.url.removeprefix("http://")
    for bind in (taken, "8000", "127.0.0.1:http", f"unix:{tmp_path}/no/such/folder", f"unix:/{'long' * 40}"):
        with pytest.raises(UserError, match=r"listen|give HOST:PORT"):
            async with Endpoint(bind):
                pass


async def test_a_taken_port_is_refused_before_the_model_is_looked_at_or_an_engine_started(tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        recipe = build_recipe({"model": {"path": str(tmp_path / "gone")}})
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        reporter, registry = PlainReporter(io.StringIO()), PluginRegistry([])
        with pytest.raises(UserError, match="the endpoint cannot listen"):
            await serve(recipe, reporter, bind=address, model="m", registry=registry, ready=lambda served: None)


async def test_an_address_is_free_again_where_no_engine_started(tmp_path) -> None:
    recipe, path = build_recipe({"model": {"path": str(tmp_path / "gone")}}), tmp_path / "s"
    reporter, registry = PlainReporter(io.StringIO()), PluginRegistry([])
    with pytest.raises(UserError, match="no model folder"):
        await serve(recipe, reporter, bind=f"unix:{path}", model="m", registry=registry, ready=lambda served: None)
    assert not path.exists()
