"""A conversation in lines of JSON over a descriptor, of any length, with a limit on what is received."""

from __future__ import annotations

import json
import os

from .frames import write_all

_PIECE = 1 << 18
_write = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def send(fd: int, message: object) -> None:
    """A message on a line. Characters are written as they are: escapes would take three times their room."""
    line = _write(message)
    try:
        data = line.encode()
    except UnicodeEncodeError:  # half a pair in an exception's message
        data = json.dumps(message, separators=(",", ":")).encode()
    write_all(fd, data + b"\n")


class TooMuch(Exception):
    """The other side said more than it may, all lines together."""


class Channel:
    """max_bytes: of all that is received."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._fd = fd
        self._left = max_bytes
        self._buffer = bytearray()
        self._searched = 0
        self.num_sent = 0  # messages

    def send(self, message: object) -> None:
        self.num_sent += 1
        send(self._fd, message)

    def receive(self) -> object:
        """The next message. Raises EOFError at the end, TooMuch, and ValueError for what is no JSON."""
        while True:
            end = self._buffer.find(b"\n", self._searched)
            if end >= 0:
                line = self._buffer[:end].decode()
                del self._buffer[: end + 1]
                self._searched = 0
                return json.loads(line)
            self._searched = len(self._buffer)
            piece = os.read(self._fd, _PIECE)
            if not piece:
                raise EOFError
            self._left -= len(piece)
            if self._left < 0:
                raise TooMuch
            self._buffer += piece
