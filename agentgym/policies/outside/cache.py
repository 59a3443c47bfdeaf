"""Answers on disk, in one file with an index: an equal request at an equal seed is not sent, and not paid, twice.

answers.jsonl       one answer a line, each appended when it arrives, by several processes too
answers.index       for each line the digest of its request, where it begins, and its length
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, NamedTuple

from agentgym.policies.outside.answers import ChatRequest
from agentgym.runs.files import append_line, cut_torn_line, writing
from agentgym.types import Json

FORMAT, OLD_FORMAT = 2, 1  # the old one: a file for each answer
ANSWERS, INDEX = "answers.jsonl", "answers.index"
_ENTRY = struct.Struct("<16sQQ")
_DIGEST = slice(12, 44)  # of a line: the index is made without parsing answers


class Known(NamedTuple):
    """An answer that was kept. by: the evaluation that paid for it. lost: see `keep`."""

    body: Json
    by: str
    lost: dict[str, int]


class AnswerCache:
    """folder: made when an answer is kept; None keeps nothing. url: of the server. by: the evaluation that plays."""

    def __init__(self, folder: Path | None, url: str, by: str = "") -> None:
        self.folder, self.url, self.by = folder, url, by
        self._lines_at: dict[bytes, tuple[int, int]] = {}
        self._read = 0  # bytes of the file whose places are known

    def find(self, request: ChatRequest) -> Known | None:
        """What cannot be read is not known."""
        if self.folder is None:
            return None
        digest = self._digest(request)
        try:
            self._read_on(self.folder)
            if digest not in self._lines_at:
                return self._find_old(self.folder, digest.hex())
            offset, length = self._lines_at[digest]
            with (self.folder / ANSWERS).open("rb") as file:
                kept = json.loads(os.pread(file.fileno(), length, offset))
            if kept["format"] != FORMAT or kept["digest"] != digest.hex():
                return None
            return Known(kept["body"], kept["by"], kept["lost"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, request: ChatRequest, body: Json, lost: Mapping[str, int]) -> None:
        """Adds a line. lost: tokens of answers to this request that could not be read, and were paid.

        What a killed process left of a line is cut off. Raises InfraError on a full disk.
        """
        if self.folder is None:
            return
        kept = {"digest": self._digest(request).hex(), "format": FORMAT, "by": self.by, "lost": {**lost}, "body": body}
        path = self.folder / ANSWERS
        with writing(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(path) as file, (self.folder / INDEX).open("a+b") as index:
                offset = cut_torn_line(file)
                append_line(path, json.dumps(kept))
                _complete(index, file, offset)

    def _read_on(self, folder: Path) -> None:
        """Learns the places of the answers that were added since, also by other processes."""
        with suppress(FileNotFoundError), (folder / ANSWERS).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == self._read:
                return
            if size < self._read:  # somebody removed it meanwhile
                self._lines_at, self._read = {}, 0
            if not self._read:
                with suppress(FileNotFoundError):
                    self._learn(_entries((folder / INDEX).read_bytes(), size))
            self._learn(_lines(file, self._read))

    def _learn(self, entries: Iterator[tuple[bytes, int, int]]) -> None:
        for digest, offset, length in entries:
            self._lines_at[digest] = offset, length
            self._read = offset + length

    def _find_old(self, folder: Path, name: str) -> Known | None:
        kept = json.loads((folder / name[:2] / f"{name}.json").read_bytes())
        return Known(kept["body"], kept["by"], {}) if kept["format"] == OLD_FORMAT else None

    def _digest(self, request: ChatRequest) -> bytes:
        """The seed counts also where the server does not take it: samples of a task are different draws."""
        text = json.dumps([self.url, request.body()], sort_keys=True)
        return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _entries(data: bytes, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Those of an index, in the order of the file, which has `size` bytes; none where it describes a longer one."""
    found = list(_ENTRY.iter_unpack(data[: len(data) // _ENTRY.size * _ENTRY.size]))
    return iter(found if not found or found[-1][1] + found[-1][2] <= size else ())


def _lines(file: IO[bytes], offset: int) -> Iterator[tuple[bytes, int, int]]:
    """The entries of the whole lines from `offset` on. A last one without an end is being written, or is torn."""
    file.seek(offset)
    for line in file:
        if not line.endswith(b"\n"):
            return
        try:
            digest = bytes.fromhex(line[_DIGEST].decode("ascii"))
        except ValueError:
            digest = b""  # damaged: the digest of no request
        yield digest, offset, len(line)
        offset += len(line)


def _complete(index: IO[bytes], file: IO[bytes], offset: int) -> None:
    """Adds the entries that an index lacks. offset: where the last line begins; an index of more than that is wrong."""
    whole = index.seek(0, os.SEEK_END) // _ENTRY.size * _ENTRY.size
    index.truncate(whole)
    end = 0
    if whole:
        _, start, length = _ENTRY.unpack(os.pread(index.fileno(), _ENTRY.size, whole - _ENTRY.size))
        end = start + length
    if end > offset:
        end = 0
        index.truncate(0)
    index.write(b"".join(_ENTRY.pack(*entry) for entry in _lines(file, end)))


@contextmanager
def _locked(path: Path) -> Iterator[IO[bytes]]:
    """The file, made where it is missing, while no other process writes it."""
    with path.open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
