"""One HTTP request to one call of a handler: its key, its body, its client that may go away, its answer."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from starlette.types import Receive, Scope, Send

from agentgym.errors import InfraError
from agentgym.plugin_errors import PluginError
from agentgym.policies.conversation import CallAnswer, CallRefused
from agentgym.serve.dialect import KEEP_ALIVE, Asked, Dialect, Failure
from agentgym.serve.dropping import read_request
from agentgym.serve.keys import Admitted, Keys
from agentgym.serve.reading import read_json
from agentgym.serve.retries import Call
from agentgym.types import Json

log = logging.getLogger(__name__)
Headers = Mapping[bytes, bytes]
_STATUS = {"context_length": 400, "invalid": 400, "ended": 409, "unavailable": 503}
_NO_RETRY = ((b"x-should-retry", b"false"),)


class Refused(Exception):
    """A request that gets no answer."""

    def __init__(self, status: int, kind: str, message: str, param: str = "") -> None:
        super().__init__(message)
        self.failure = Failure(status=status, kind=kind, message=message, param=param)


@dataclass(slots=True)
class Gate:
    """What all routes share. counts: of requests, by what became of them."""

    keys: Keys
    max_body_bytes: int
    keep_alive_s: float
    closing: bool = False
    counts: Counter[str] = field(default_factory=Counter)

    def admitted(self, headers: Headers) -> Admitted:
        """Whom the request's key belongs to. Raises Refused."""
        key = _key(headers)
        found = self.keys.admitted.get(key)
        if found is not None:
            return found
        if self.keys.is_concluded(key):
            raise Refused(409, "ended", "the episode of this key is over")
        ways = "`Authorization: Bearer KEY`, x-api-key or x-goog-api-key"
        message = "this key is unknown" if key else f"no key was given; send it as {ways}"
        raise Refused(401, "key", message)

    async def body(self, admitted: Admitted, headers: Headers, receive: Receive) -> bytes:
        """Raises Refused for one that is encoded, or too large (with others that its key sends now); ClientGone."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            raise Refused(415, "invalid", "the body is compressed; send it as it is")
        too_large = Refused(413, "invalid", f"the body has more than {self.max_body_bytes} bytes")
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.max_body_bytes:
            raise too_large
        pieces = []
        more = True
        try:
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientGone
                pieces.append(message.get("body", b""))
                admitted.receiving_bytes += len(pieces[-1])
                if admitted.receiving_bytes > self.max_body_bytes:
                    raise too_large
                more = message.get("more_body", False)
        finally:
            admitted.receiving_bytes -= sum(map(len, pieces))
        return b"".join(pieces)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def _key(headers: Headers) -> str:
    scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() != b"bearer" or not key.strip():
        key = headers.get(b"x-api-key") or headers.get(b"x-goog-api-key", b"")
    return key.strip().decode("latin-1")


class CallRoute:
    """The ASGI app of a dialect's calls."""

    def __init__(self, gate: Gate, dialect: Dialect) -> None:
        self._gate, self._dialect = gate, dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        counts, headers = self._gate.counts, dict(scope["headers"])
        counts["requests"] += 1
        try:
            admitted = self._gate.admitted(headers)
            body = await self._gate.body(admitted, headers, receive)
            drops: Collection[str] = getattr(admitted.handler, "drops", ())
            asked = read_request(self._dialect, read_json(body), drops)
            if admitted.concluded or self._gate.closing:
                raise Refused(409, "ended", "the episode of this key is over")
            marked = headers.get(b"x-stainless-retry-count", b"0") != b"0"
            call, again = admitted.call(hash((scope["path"], body)), asked.request, marked=marked)
            del body  # it may be large, and a call long
        except (CallRefused, Refused) as error:
            failure = failure_of(error)
            counts[f"refused_{failure.status}"] += 1
            await send_json(send, failure.status, self._dialect.failure(failure))
            return
        except ClientGone:
            counts["clients_gone"] += 1
            return
        counts["retries"] += again
        await _Exchange(self._gate, self._dialect, admitted, asked, call).run(receive, send)


class _Exchange:
    """A request whose call is under way."""

    def __init__(self, gate: Gate, dialect: Dialect, admitted: Admitted, asked: Asked, call: Call) -> None:
        self._gate, self._dialect, self._admitted, self._asked, self._call = gate, dialect, admitted, asked, call
        self._begun = False  # an event stream, that is: the status has been sent

    async def run(self, receive: Receive, send: Send) -> None:
        reached = False
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await self._wait(gone, send)
            if gone.done():
                raise ClientGone
            await self._send_outcome(send)
            reached = True
        except ClientGone:
            self._gate.counts["clients_gone"] += 1
        finally:
            gone.cancel()
            self._admitted.retries.leave(self._call, reached=reached)

    async def _wait(self, gone: asyncio.Task[None], send: Send) -> None:
        """Waits until the call ends or the client disconnects; a stream is kept alive meanwhile."""
        pause_s = self._gate.keep_alive_s if self._asked.stream else None
        both = (self._call.task, gone)
        while not (await asyncio.wait(both, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED))[0]:
            await self._begin(send)
            await send({"type": "http.response.body", "body": KEEP_ALIVE, "more_body": True})

    async def _begin(self, send: Send) -> None:
        if not self._begun:
            headers = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-store")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            self._begun = True

    async def _send_outcome(self, send: Send) -> None:
        outcome = self._outcome()
        if isinstance(outcome, Failure):
            self._gate.counts[f"refused_{outcome.status}"] += 1
            if not self._begun:
                await send_json(send, outcome.status, self._dialect.failure(outcome))
                return
            body = self._dialect.failure_event(outcome)
        else:
            self._gate.counts["answers"] += 1
            if not self._asked.stream:
                await send_json(send, 200, self._dialect.answer(self._asked, outcome, self._call.made))
                return
            await self._begin(send)
            body = b"".join(self._dialect.events(self._asked, outcome, self._call.made))
        await send({"type": "http.response.body", "body": body})

    def _outcome(self) -> CallAnswer | Failure:
        task = self._call.task
        if task.cancelled():
            if self._gate.closing:
                return Failure(status=503, kind="ended", message="the endpoint is closing")
            return Failure(status=409, kind="ended", message="the episode ended during this call")
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, PluginError) or not isinstance(error, (CallRefused, InfraError)):
            if self._admitted.bug is None:
                log.error("a call failed: %s: %s", type(error).__name__, error, exc_info=error)
            self._admitted.bug = error
        return failure_of(error)


async def _until_gone(receive: Receive) -> None:
    with suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass


def failure_of(error: BaseException) -> Failure:
    """What the client is told of an error; of a bug of ours, no more than that it is one."""
    if isinstance(error, Refused):
        return error.failure
    if isinstance(error, CallRefused):
        return Failure(status=_STATUS[error.kind], kind=error.kind, message=str(error), param=error.param)
    if isinstance(error, PluginError):
        return Failure(status=500, kind="bug", message=str(error))
    if isinstance(error, InfraError):
        return Failure(status=503, kind="unavailable", message=str(error))
    return Failure(status=500, kind="bug", message="the policy's side failed; its log says why")


async def send_json(send: Send, status: int, value: Json) -> None:
    """A whole response. What sending again cannot change says so: clients' libraries send 409 and 500 again."""
    body = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    if status in (409, 500):
        headers += _NO_RETRY
    if status in (401, 413, 415):  # the rest of the body is not read, and may have no end
        headers.append((b"connection", b"close"))
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
