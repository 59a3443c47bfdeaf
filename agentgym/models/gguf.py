"""Reads GGUF files: their fields, and their tensors as float32.

Source of the layout: ggml's docs/gguf.md, version 3; of the blocks: the structs of ggml-common.h.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from agentgym.errors import UserError
from agentgym.types import Json

Floats = npt.NDArray[np.float32]

STRING, ARRAY = 8, 9  # of the types of a field's value
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
BLOCK = 32  # values that share a scale


@dataclass(frozen=True, slots=True)
class Encoding:
    """How a tensor's values are stored: `block` of them in `size` bytes. decode: [blocks, size] bytes to floats."""

    block: int
    size: int
    decode: Callable[[npt.NDArray[np.uint8]], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """shape: as torch writes it, the axis whose values lie side by side last."""

    shape: tuple[int, ...]
    data: npt.NDArray[np.uint8]
    encoding: Encoding

    def read(self) -> Floats:
        return self.encoding.decode(self.data.reshape(-1, self.encoding.size)).reshape(self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFile:
    fields: dict[str, Json]
    tensors: dict[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Maps the file; a tensor's values are computed when it is read. Raises UserError for what is not such a file."""
    try:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return _read(data)
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UserError(f"{path} is not a GGUF file that can be read: {type(error).__name__}: {error}") from error


def _read(data: mmap.mmap) -> GgufFile:
    cursor = _Cursor(data)
    magic, version = cursor.take("4sI")
    if magic != b"GGUF" or version not in (2, 3):
        raise ValueError(f"it begins with {magic!r}, version {version}")
    num_tensors, num_fields = cursor.take("QQ")
    fields = {cursor.string(): cursor.value(cursor.take("I")[0]) for _ in range(num_fields)}
    found: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(num_tensors):
        name, shape = cursor.string(), cursor.take(f"{cursor.take('I')[0]}Q")
        found.append((name, shape[::-1], *cursor.take("IQ")))
    alignment: Any = fields.get("general.alignment", 32)
    start = -(-cursor.offset // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in found:
        if kind not in ENCODINGS:
            raise ValueError(f"{name} has the encoding {kind}; those that are read are {sorted(ENCODINGS)}")
        encoding = ENCODINGS[kind]
        num_bytes = math.prod(shape) // encoding.block * encoding.size
        bytes_ = np.frombuffer(data, np.uint8, num_bytes, start + offset)
        tensors[name] = GgufTensor(shape=shape, data=bytes_, encoding=encoding)
    return GgufFile(fields=fields, tensors=tensors)


class _Cursor:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.offset = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        """Little-endian values without gaps."""
        found = struct.unpack_from(f"<{layout}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return found

    def string(self) -> str:
        [length] = self.take("Q")
        begin, self.offset = self.offset, self.offset + length
        if self.offset > len(self._data):
            raise ValueError(f"a text of {length} bytes goes beyond its end")
        return self._data[begin : self.offset].decode()

    def value(self, kind: int) -> Json:
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            of, count = self.take("IQ")
            return list(self.take(f"{count}{SCALARS[of]}")) if of in SCALARS else [self.value(of) for _ in range(count)]
        [scalar] = self.take(SCALARS[kind])
        return cast(Json, scalar)


def _halves(blocks: npt.NDArray[np.uint8], at: int) -> Floats:
    """The float16 at a place of each block, [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _q8_0(blocks: npt.NDArray[np.uint8]) -> Floats:
    """A scale, then 32 signed bytes."""
    values: Floats = _halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)
    return values


def _q4_1(blocks: npt.NDArray[np.uint8]) -> Floats:
    """A scale, the least value, then 32 half-bytes: the first 16 are the lower halves."""
    halves = np.concatenate([blocks[:, 4:] & 0xF, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    values: Floats = _halves(blocks, 0) * halves + _halves(blocks, 2)
    return values


ENCODINGS = {
    0: Encoding(1, 4, lambda blocks: blocks.view(np.float32)),
    1: Encoding(1, 2, lambda blocks: blocks.view(np.float16).astype(np.float32)),
    3: Encoding(BLOCK, 20, _q4_1),
    8: Encoding(BLOCK, 34, _q8_0),
}
"""By ggml's number of the type: F32, F16, Q4_1, Q8_0."""
