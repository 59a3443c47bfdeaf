"""Reads the head of a proxy request, strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentgym_sandboxes.network.hosts import split_port

MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_REQUEST_LINE = re.compile(r"([A-Za-z]{1,20}) ([!-~]{1,8192}) HTTP/1\.([01])")
_URL = re.compile(r"http://([^/?#@\\]*)([/?][!-~]*)?", re.IGNORECASE)
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):(.*)")
_FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HOP_BY_HOP = frozenset(
    ("connection", "keep-alive", "te", "trailer", "upgrade", "transfer-encoding", "content-length", "http2-settings")
)  # fmt: skip


class BadRequest(ValueError):
    """The request can't be forwarded; status is what HTTP calls it."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """A request's head. For a tunnel the rest is empty; host: canonical.

    forward: the head to send on, without an end line. body_bytes: of the body, None when it is chunked.
    """

    tunnel: bool
    host: str
    port: int
    forward: bytes = b""
    body_bytes: int | None = 0


def read_head(data: bytes) -> Head:
    """data: all up to and with the empty line. Raises BadRequest."""
    lines = data.decode("latin-1").split("\r\n")
    if len(data) > MAX_HEAD_BYTES or len(lines) - 3 > MAX_HEADERS:
        raise BadRequest(431, "the head of the request is too large")
    if lines[-2:] != ["", ""] or any(_FORBIDDEN.search(line) for line in lines):
        raise BadRequest(400, "the head holds control characters or bare line ends")
    line = _REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise BadRequest(400, "the first line is no HTTP/1 request")
    method, target = line.group(1), line.group(2)
    headers = [_header(text) for text in lines[1:-2]]
    if method == "CONNECT":
        return _tunnel(target, headers)
    if method not in _METHODS:
        raise BadRequest(501, f"method {method} is not forwarded")
    return _forwarded(method, target, line.group(3) == "1", headers)


def _header(text: str) -> tuple[str, str]:
    match = _HEADER.fullmatch(text)
    if match is None:
        raise BadRequest(400, "a header line is malformed")
    return match.group(1), match.group(2).strip(" \t")


def _tunnel(target: str, headers: list[tuple[str, str]]) -> Head:
    host, port = _authority(target, None)
    _check_body_free(headers)
    return Head(tunnel=True, host=host, port=port)


def _forwarded(method: str, target: str, is_1_1: bool, headers: list[tuple[str, str]]) -> Head:
    url = _URL.fullmatch(target)
    if url is None:
        raise BadRequest(400, "a proxy takes http://host/path, and CONNECT for https")
    host, port = _authority(url.group(1), 80)
    hosts = _values(headers, "host")
    if len(hosts) > 1 or (is_1_1 and not hosts):
        raise BadRequest(400, "there must be one Host header")
    if hosts and _authority(hosts[0], 80) != (host, port):
        raise BadRequest(400, "the Host header and the URL name different hosts")
    body_bytes = _body_bytes(headers)
    if body_bytes is None and not is_1_1:
        raise BadRequest(400, "HTTP/1.0 has no chunks")
    path = url.group(2) or "/"
    path = path if path.startswith("/") else "/" + path
    dropped = _HOP_BY_HOP | {"host"} | _named_by_connection(headers)
    kept = [(name, value) for name, value in headers if not name.lower().startswith("proxy-")]
    kept = [(name, value) for name, value in kept if name.lower() not in dropped]
    shown = f"[{host}]" if ":" in host else host
    out = [f"{method} {path} HTTP/1.1", f"Host: {shown}" if port == 80 else f"Host: {shown}:{port}"]
    out += [f"{name}: {value}" for name, value in kept]
    if body_bytes is None:
        out.append("Transfer-Encoding: chunked")
    elif _values(headers, "content-length"):
        out.append(f"Content-Length: {body_bytes}")
    out += ["Connection: close", "", ""]  # one request a connection: no second one can name another host
    return Head(
        tunnel=False, host=host, port=port, forward="\r\n".join(out).encode("latin-1"), body_bytes=body_bytes
    )


def _authority(text: str, default_port: int | None) -> tuple[str, int]:
    try:
        return split_port(text, default_port)
    except ValueError as error:
        raise BadRequest(400, str(error)) from error


def _values(headers: list[tuple[str, str]], name: str) -> list[str]:
    return [value for found, value in headers if found.lower() == name]


def _named_by_connection(headers: list[tuple[str, str]]) -> set[str]:
    return {name.strip().lower() for value in _values(headers, "connection") for name in value.split(",")}


def _body_bytes(headers: list[tuple[str, str]]) -> int | None:
    lengths, codings = _values(headers, "content-length"), _values(headers, "transfer-encoding")
    if codings:
        if lengths or [coding.lower() for coding in codings] != ["chunked"]:
            raise BadRequest(400, "the length of the body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not re.fullmatch(r"[0-9]{1,15}", lengths[0]):
        raise BadRequest(400, "the length of the body is ambiguous")
    return int(lengths[0])


def _check_body_free(headers: list[tuple[str, str]]) -> None:
    if _values(headers, "transfer-encoding") or any(v != "0" for v in _values(headers, "content-length")):
        raise BadRequest(400, "a CONNECT request has no body")
