"""Access control: requests to our own address, from our own page, with the token where one is needed.

A page of another site can make a browser send requests here. What stops it: the Host has to be ours (a name that was
pointed at this machine is not), the Origin of anything that changes something has to be ours, its body has to be
JSON, and no answer allows another site to read it. What an episode says is answered as JSON only, and the page may
load nothing and run no script but its own files.
"""

from __future__ import annotations

import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentgym.tables.problems import STATUS

LOOPBACK = ("127.0.0.1", "::1", "localhost")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
SAFE = ("GET", "HEAD")
MAX_BODY = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """hosts: the names and addresses that a request may be sent to; empty allows all IP addresses, but no names.

    token: empty where only this machine can ask.
    """

    port: int
    hosts: tuple[str, ...] = LOOPBACK
    token: str = ""

    @classmethod
    def of(cls, host: str, port: int) -> Access:
        """host: that the server listens on. Beyond this machine it needs the token, made here."""
        if is_loopback(host):
            return cls(port=port, hosts=tuple(dict.fromkeys((*LOOPBACK, host))))
        anywhere = host in ("0.0.0.0", "::")
        return cls(port=port, hosts=() if anywhere else (host, *LOOPBACK), token=secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        return f"agentgym_view_{self.port}"

    def allows_host(self, header: str) -> bool:
        name, port = split_host(header)
        if port not in ("", str(self.port)):
            return False
        if self.hosts:
            return name in self.hosts
        return name == "localhost" or _is_address(name)


def is_loopback(host: str) -> bool:
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def split_host(header: str) -> tuple[str, str]:
    """Name and port of a Host header; an IPv6 address without its brackets."""
    name, port = header, ""
    if header.startswith("["):
        name, _, rest = header[1:].partition("]")
        port = rest.removeprefix(":")
    elif header.count(":") == 1:
        name, _, port = header.partition(":")
    return name.lower(), port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


@dataclass(slots=True)
class Guard:
    """The outermost layer of the application: refuses, or answers with the headers that confine the page."""

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websocket is served
            await send({"type": "websocket.close", "code": 1008})
            return
        answer = self._first_answer(scope)
        if answer is not None:
            await answer(scope, receive, _with_headers(send))
            return
        await self.app(scope, _bounded(receive), _with_headers(send))

    def _first_answer(self, scope: Scope) -> Response | None:
        """A refusal, or the redirect that takes the token out of the address; None where the request may pass."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get("host", "")
        if not self.access.allows_host(host):
            return _refuse("forbidden", f"this server is not {host[:100]!r}; open the address that it printed")
        if scope["method"] not in SAFE:
            if (problem := self._problem_of_change(headers, host)) is not None:
                return problem
        elif headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
            return _refuse("forbidden", "another site's page may not read this")
        return self._token_answer(scope, headers)

    def _problem_of_change(self, headers: dict[str, str], host: str) -> Response | None:
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"http://{host}".lower():
            return _refuse("forbidden", f"a page of {origin[:100]!r} may not change anything here")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return _refuse("forbidden", "another site's page may not change anything here")
        if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            return _refuse("unsupported", "send JSON, with content-type: application/json")
        if not headers.get("content-length", "0").isdigit() or int(headers.get("content-length", "0")) > MAX_BODY:
            return _refuse("too_large", f"a body may have {MAX_BODY} bytes")
        return None

    def _token_answer(self, scope: Scope, headers: dict[str, str]) -> Response | None:
        access = self.access
        if not access.token:
            return None
        if secrets.compare_digest(_cookie(headers.get("cookie", ""), access.cookie), access.token.encode()):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if not secrets.compare_digest(given.encode(), access.token.encode()):
            return _refuse("forbidden", "open the address with its token, as the server printed it")
        if scope["path"] != "/" or scope["method"] not in SAFE:
            return None
        answer = RedirectResponse("/", 303)
        answer.set_cookie(access.cookie, access.token, httponly=True, samesite="lax", path="/")
        return answer


def _refuse(kind: str, text: str) -> Response:
    return JSONResponse({"error": {"kind": kind, "message": text, "nearest": ""}}, STATUS[kind])


def _cookie(header: str, name: str) -> bytes:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return b""
    return found.value.encode() if found else b""


def _with_headers(send: Send) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            known = {name for name, _ in message["headers"]}
            extra = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in known]
            message = {**message, "headers": [*message["headers"], *extra]}
        await send(message)

    return answer


def _bounded(receive: Receive) -> Callable[[], Awaitable[Message]]:
    """The body of a request, which ends the connection where it is larger than it may be."""
    seen = 0

    async def read() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        return message if seen <= MAX_BODY else {"type": "http.disconnect"}

    return read
