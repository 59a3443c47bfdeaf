"""How a request to the proxy is parsed: what is refused, and what of its body is passed on."""

from __future__ import annotations

import pytest
from fuzz.network_targets import Canned
from websites import get

from agentgym_sandboxes.network.request import BadRequest, ClientRequest


@pytest.mark.parametrize("framing", ["Content-Length: 3", "Transfer-Encoding: chunked"])
async def test_no_byte_after_a_body_is_passed_on(framing: str) -> None:
    body = b"abc" if "3" in framing else b"3\r\nabc\r\n0\r\n\r\n"
    head = get("site.example", "/", f"{framing}\r\n", "POST")
    assert await forwarded_body(head + body[:2], body[2:] + b"GET http://evil.example/") == body


async def forwarded_body(*pieces: bytes) -> bytes:
    request = ClientRequest(Canned(pieces))
    await request.read_head()
    sent = bytearray()

    async def send(piece: bytes) -> None:
        sent.extend(piece)

    await request.copy_body(send)
    return bytes(sent)


@pytest.mark.parametrize(
    "body",
    [b"1;x=y\r\na\r\n0\r\n\r\n", b"1\r\na\r\n0;x\r\n\r\n", b"1 \r\na\r\n0\r\n\r\n",
     b"1\r\na\r\n0\r\nX: y\r\n\r\n", b"1\r\na\r\n0\r\n\n", b"1\r\nab\r\n0\r\n\r\n", b"1\na\r\n0\r\n\r\n",
     b"x\r\n", b"-1\r\n\r\n", b"1\r\na0\r\n\r\n"],
)  # fmt: skip
async def test_chunks_that_are_not_plain_are_refused(body: bytes) -> None:
    with pytest.raises((BadRequest, EOFError)):
        await forwarded_body(get("site.example", "/", "Transfer-Encoding: chunked\r\n", "POST") + body)


SMUGGLING = [
    "Content-Length: 1\r\nContent-Length: 2\r\n",
    "Content-Length: 1\r\nContent-Length: 1\r\n",
    "Content-Length:\r\n",
    "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Content-Length: +1\r\n",
    "Content-Length: -1\r\n",
    "Content-Length: 0x1\r\n",
    "Content-Length: 1, 1\r\n",
    "Host: evil.example\r\n",
    "X: a\r\n b\r\n",
    "X: a\nHost: evil.example\r\n",
    "X: a\rHost: evil.example\r\n",
    "X: a\x00\r\n",
    "no colon\r\n",
    ": no name\r\n",
]


NOT_FORWARDED = [
    (400, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"GET https://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"GET http://a@b/ HTTP/1.1\r\nHost: b\r\n\r\n"),
    (400, b"GET http://a\\@b/ HTTP/1.1\r\nHost: b\r\n\r\n"),
    (400, b"GET http://a#@b/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n"),
    (400, b"GET http://a/ HTTP/1.1\r\n\r\n"),
    (400, b"GET http:///x HTTP/1.1\r\nHost: \r\n\r\n"),
    (400, b"GET http://0x7f.1/ HTTP/1.1\r\nHost: 0x7f.1\r\n\r\n"),
    (400, b"GET http://a/ HTTP/2.0\r\nHost: a\r\n\r\n"),
    (400, b"GET  http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"GET http://a/ HTTP/1.1\nHost: a\n\n"),
    (400, b"POST http://a/ HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"),
    (400, b"CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"CONNECT a:99999 HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"CONNECT http://a:443/ HTTP/1.1\r\nHost: a\r\n\r\n"),
    (400, b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n"),
    (400, b"\r\n\r\n"),
    (400, b"\x16\x03\x01\r\n\r\n"),
    (431, b"GET http://a/" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n"),
    (431, b"GET http://a/ HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 40_000 + b"\r\n\r\n"),
    (431, b"GET http://a/ HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n"),
    (501, b"TRACE http://a/ HTTP/1.1\r\nHost: a\r\n\r\n"),
]


@pytest.mark.parametrize(
    ("status", "head"), [*((400, get("a", "/", extra, "POST")) for extra in SMUGGLING), *NOT_FORWARDED]
)
async def test_what_is_ambiguous_or_not_a_proxy_request_is_refused(status: int, head: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        await ClientRequest(Canned([head])).read_head()
    assert caught.value.status == status
