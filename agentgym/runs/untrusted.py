"""Reads files that anyone may have written: regular files alone, each up to a size, and damage is one exception."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MAX_BYTES = 1 << 26  # of a line, and of a file that is read whole
_CHUNK = 1 << 20
MAX_NUMBER = 10**9  # of steps, groups and sizes: a larger one was not written by a run


class Damaged(Exception):
    """A file that is not what it should be; says how."""


@contextlib.contextmanager
def damage() -> Iterator[None]:
    """Turn what reading foreign bytes raises into Damaged. A file that is missing raises FileNotFoundError."""
    try:
        yield
    except (Damaged, FileNotFoundError):
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError,
            RecursionError, zlib.error, struct.error) as error:  # fmt: skip
        raise Damaged(f"{type(error).__name__}: {error}"[:300]) from error


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A regular file. Anything else could block (a FIFO) or never end (a device)."""
    with damage():
        file = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Damaged("it is not a regular file")
            yield file


def read_object(path: Path) -> dict[str, Any]:
    """One JSON object. Raises Damaged, FileNotFoundError."""
    with opened(path) as file:
        return _object(_up_to_most(file.read(MAX_BYTES + 1)))


def read_text(path: Path) -> str:
    """All of a file. Raises Damaged, FileNotFoundError."""
    with opened(path) as file:
        return _up_to_most(file.read(MAX_BYTES + 1)).decode()


def read_objects(path: Path) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """The lines of a plain or gzipped file, numbered from 1; None for one that is no JSON object.

    Raises Damaged where the file can't be read on.
    """
    with opened(path) as file:
        chunks = _inflated(file) if path.suffix == ".gz" else iter(lambda: file.read(_CHUNK), b"")
        for number, line in enumerate(_split(chunks), start=1):
            try:
                found = _object(line)
            except Damaged:
                yield number, None
            else:
                yield number, found


def _inflated(file: BinaryIO) -> Iterator[bytes]:
    """What a gzipped file holds. Not by `gzip`, which looks for more behind its end, byte by byte."""
    data, member, whole = b"", zlib.decompressobj(wbits=31), False
    while data := data or file.read(_CHUNK):
        yield member.decompress(data, _CHUNK)
        data = member.unconsumed_tail
        whole = member.eof
        if whole:
            data, member = member.unused_data, zlib.decompressobj(wbits=31)
    if not whole:
        raise Damaged("it ends early")


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The lines of what comes in pieces."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
        _up_to_most(rest)
    if rest:
        yield rest


def safetensors_size(path: Path) -> tuple[int, int]:
    """The bytes that a safetensors file has, and those that its header announces. Raises Damaged."""
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, MAX_BYTES):
            raise Damaged(f"its header has {length} bytes, the file {size}")
        tensors = _object(file.read(length))
        end = max(
            (number(one["data_offsets"][1]) for name, one in tensors.items() if name != "__metadata__"), default=0
        )
        return size, 8 + length + end


def number(value: object, most: int | None = None) -> int:
    """A whole number that is not negative. Raises Damaged."""
    if type(value) is not int or value < 0 or (most is not None and value > most):
        raise Damaged(f"{value!r:.40} is no number that a run writes")
    return value


def _object(data: bytes) -> dict[str, Any]:
    with damage():
        found = json.loads(data)
    if not isinstance(found, dict):
        raise Damaged(f"it holds a {type(found).__name__}, not a JSON object")
    return found


def _up_to_most(data: bytes) -> bytes:
    if len(data) > MAX_BYTES:
        raise Damaged(f"it has more than {MAX_BYTES >> 20} MiB in one piece")
    return data
