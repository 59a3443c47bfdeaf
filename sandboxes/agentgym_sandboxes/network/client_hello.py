"""Reads the server name from the beginning of a TLS connection."""

from __future__ import annotations

import struct

MAX_HELLO_BYTES = 32 * 1024
MAX_RECORDS = 8  # usually one or two; a thousand small ones would be parsed again with every piece
_HANDSHAKE, _CLIENT_HELLO = 22, 1
_SERVER_NAME = 0
_ENCRYPTED = (*range(0xFE08, 0xFE0E), 0xFFCE)  # encrypted client hello, drafts and final; ESNI before that


class NotTls(ValueError):
    """The bytes are not the beginning of TLS, or their server name cannot be trusted."""


def server_name(data: bytes) -> str | None:
    """The name that the client asks for, "" when it names none; None: more bytes are needed.

    Raises NotTls, also for an encrypted hello: its outer name may differ from the inner one.
    """
    hello = _handshake(data)
    if hello is None:
        return None
    try:
        return _find_name(_Cursor(hello))
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise NotTls("a malformed TLS hello") from error


def _handshake(data: bytes) -> bytes | None:
    """The body of the first handshake message, joined from its records."""
    body, start = b"", 0
    for _ in range(MAX_RECORDS):
        record = data[start : start + 5]
        if any(got != want for got, want in zip(record, (_HANDSHAKE, 3), strict=False)):
            raise NotTls("not TLS")
        if len(record) == 5:
            size = int.from_bytes(record[3:5])
            if not 0 < size <= 1 << 14:
                raise NotTls("a malformed TLS record")
            body += data[start + 5 : start + 5 + size]
            start += 5 + size
        if body and body[0] != _CLIENT_HELLO:
            raise NotTls("not a TLS hello")
        if len(body) >= 4:
            end = 4 + int.from_bytes(body[1:4])
            if end > MAX_HELLO_BYTES:
                raise NotTls("a TLS hello that is too long")
            if len(body) >= end:
                return body[4:end]
        if len(data) < start or len(record) < 5:
            return None
    raise NotTls("a TLS hello in too many records")


class _Cursor:
    """Reads fields that begin with their length."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, size: int) -> bytes:
        if size > len(self.rest):
            raise IndexError("past the end")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def field(self, length_size: int) -> bytes:
        return self.take(self.number(length_size))


def _find_name(hello: _Cursor) -> str:
    hello.take(34)  # version, random
    hello.field(1)  # session
    hello.field(2)  # ciphers
    hello.field(1)  # compression
    names: list[bytes] = []
    extensions = _Cursor(hello.field(2) if hello.rest else b"")
    while extensions.rest:
        kind, value = extensions.number(2), extensions.field(2)
        if kind in _ENCRYPTED:
            raise NotTls("an encrypted TLS hello")
        if kind == _SERVER_NAME:
            entries = _Cursor(_Cursor(value).field(2))
            while entries.rest:
                if entries.number(1) != 0:
                    raise NotTls("a TLS server name of an unknown type")
                names.append(entries.field(2))
    if len(names) > 1:
        raise NotTls("two TLS server names")
    return names[0].decode("ascii") if names else ""
