"""Frames on a byte stream: a small JSON header, then blobs that the receiver need not understand."""

from __future__ import annotations

import collections
import json
import os
import struct
from collections.abc import Sequence
from typing import Callable, NamedTuple, Union

Field = Union[None, bool, int, float, str, list[int], list[str], dict[str, float], dict[str, int], dict[str, str]]
Header = dict[str, Field]
Blob = Union[bytes, bytearray]

_LENGTHS = struct.Struct(">II")  # of the header, of all blobs together
MAX_HEADER_BYTES = 1 << 16
MAX_BODY_BYTES = 1 << 27


class Frame(NamedTuple):
    """One message. On the wire the header's `sizes` says how the body falls into blobs."""

    header: Header
    blobs: list[bytes]


OnFrame = Callable[[Frame], None]


class FrameError(ValueError):
    """The stream does not hold frames."""


def prefix(header: Header, blobs: Sequence[Blob] = ()) -> bytes:
    """The bytes before the blobs of a frame."""
    sizes = [len(blob) for blob in blobs]
    head = json.dumps({**header, "sizes": sizes}).encode()
    return _LENGTHS.pack(len(head), sum(sizes)) + head


def encode(header: Header, blobs: Sequence[Blob] = ()) -> bytes:
    """The bytes of one frame."""
    return b"".join([prefix(header, blobs), *blobs])


class FrameReader:
    """Cuts a stream into frames, whatever the sizes of the pieces it arrives in; each byte is copied once."""

    def __init__(self) -> None:
        self._pieces: collections.deque[memoryview] = collections.deque()
        self._num_held = 0
        self._lengths: tuple[int, int] | None = None

    def feed(self, data: bytes) -> list[Frame]:
        """The frames that `data` completes. Raises FrameError when the stream does not hold frames."""
        self._pieces.append(memoryview(data))
        self._num_held += len(data)
        found: list[Frame] = []
        while True:
            if self._lengths is None:
                if self._num_held < _LENGTHS.size:
                    return found
                head_size, body_size = _LENGTHS.unpack(self._take(_LENGTHS.size))
                if head_size > MAX_HEADER_BYTES or body_size > MAX_BODY_BYTES:
                    raise FrameError(f"a frame of {head_size} + {body_size} bytes")
                self._lengths = head_size, body_size
            if self._num_held < sum(self._lengths):
                return found
            header, sizes = _decode(self._take(self._lengths[0]), self._lengths[1])
            found.append(Frame(header, [self._take(size) for size in sizes]))
            self._lengths = None

    def _take(self, size: int) -> bytes:
        """The next bytes, of which there are enough."""
        self._num_held -= size
        taken = []
        while size:
            piece = self._pieces.popleft()
            if len(piece) > size:
                self._pieces.appendleft(piece[size:])
                piece = piece[:size]
            taken.append(piece)
            size -= len(piece)
        return b"".join(taken)


def _decode(head: bytes, body_size: int) -> tuple[Header, list[int]]:
    """A frame's header, and the sizes of its blobs."""
    try:
        header = json.loads(head)
    except (ValueError, RecursionError) as error:
        raise FrameError("a header that is no JSON") from error
    sizes = header.pop("sizes", None) if isinstance(header, dict) else None
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise FrameError("a header without the sizes of its blobs")
    if sum(sizes) != body_size:
        raise FrameError(f"blobs of {sum(sizes)} bytes in a body of {body_size}")
    return header, sizes


def write_all(fd: int, data: bytes) -> None:
    """Write every byte: one write may take fewer than it was given."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def memory_file(data: bytes) -> int:
    """A descriptor that holds `data`, at its beginning."""
    fd = os.memfd_create("payload")
    write_all(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def write_line(fd: int, value: object) -> None:
    """One JSON value on a line of its own."""
    write_all(fd, json.dumps(value, separators=(",", ":")).encode() + b"\n")
