"""Frames on a byte stream: a small JSON header, then blobs that the receiver need not understand."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Sequence
from typing import NamedTuple, Union

Field = Union[None, bool, int, float, str, list[int], list[str], dict[str, float], dict[str, int]]
Header = dict[str, Field]

_LENGTHS = struct.Struct(">II")  # of the header, of all blobs together
MAX_HEADER_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 27


class Frame(NamedTuple):
    """One message. The header's `sizes` says how the body falls into blobs."""

    header: Header
    blobs: list[bytes]


class FrameError(ValueError):
    """The stream does not hold frames."""


def encode(header: Header, blobs: Sequence[bytes] = ()) -> bytes:
    """The bytes of one frame."""
    head = json.dumps({**header, "sizes": [len(blob) for blob in blobs]}).encode()
    body = b"".join(blobs)
    return _LENGTHS.pack(len(head), len(body)) + head + body


class FrameReader:
    """Cuts a stream into frames, whatever the sizes of the pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises FrameError when the stream is none of ours."""
        self._buffer += data
        frames = []
        while len(self._buffer) >= _LENGTHS.size:
            head_size, body_size = _LENGTHS.unpack_from(self._buffer)
            if head_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES:
                raise FrameError(f"a frame of {head_size} + {body_size} bytes")
            start = _LENGTHS.size + head_size
            end = start + body_size
            if len(self._buffer) < end:
                break
            frames.append(_decode(bytes(self._buffer[_LENGTHS.size : start]), bytes(self._buffer[start:end])))
            del self._buffer[:end]
        return frames


def _decode(head: bytes, body: bytes) -> Frame:
    try:
        header = json.loads(head)
    except ValueError as error:
        raise FrameError("a header that is no JSON") from error
    blobs, start = [], 0
    for size in header["sizes"]:
        blobs.append(body[start : start + size])
        start += size
    return Frame(header, blobs)


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: one write may take fewer than it was given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_all(fd: int) -> bytes:
    """Read to the end."""
    pieces: list[bytes] = []
    while True:
        piece = os.read(fd, 1 << 16)
        if not piece:
            return b"".join(pieces)
        pieces.append(piece)


def write_line(fd: int, value: object) -> None:
    """One JSON value on a line of its own."""
    write_all(fd, json.dumps(value, separators=(",", ":")).encode() + b"\n")


class LineReader:
    """JSON values, one a line, from a descriptor."""

    def __init__(self, fd: int, max_bytes: int) -> None:
        self._fd = fd
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def next(self) -> object:
        """The next value. Raises EOFError at the end, FrameError for a line that is too long."""
        while True:
            end = self._buffer.find(b"\n")
            if end >= 0:
                line = bytes(self._buffer[:end])
                del self._buffer[: end + 1]
                return json.loads(line)
            if len(self._buffer) > self._max_bytes:
                raise FrameError(f"a line of more than {self._max_bytes} bytes")
            piece = os.read(self._fd, 1 << 16)
            if not piece:
                raise EOFError
            self._buffer += piece
