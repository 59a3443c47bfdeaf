"""The safetensors format: headers, files, and folders of shards with their index.

Source of the layout: the safetensors README, "Format". torch is imported only where tensors are read or written.
"""

from __future__ import annotations

import json
import mmap
import os
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agentgym.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "model.safetensors.index.json"
HEADER_BYTES = 64 * 1024  # reserved for the header, which is known only after the last tensor
MAX_SHARD_BYTES = 4 << 30
CHUNK_BYTES = 16 << 20  # written at a time by one thread
WRITERS = min(8, os.cpu_count() or 1)
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where a tensor is: bytes [begin, end) of the file. dtype: the format's own name, for example BF16."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def weight_files(folder: Path) -> list[Path]:
    """One file, or the shards that an index names. Raises UserError where one is missing."""
    index = folder / INDEX
    names = {"model.safetensors"}
    if index.is_file():
        try:
            names = {*json.loads(index.read_text())["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise UserError(f"{index} is damaged: {error}") from error
    paths = [folder / name for name in sorted(names)]
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} does not exist: the folder has no weights in safetensors format")
    return paths


def read_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors in a folder, from the headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in weight_files(folder):
        with path.open("rb") as file:
            shapes |= {name: entry.shape for name, entry in read_header(file).items()}
    return shapes


def read_header(file: BinaryIO) -> dict[str, TensorEntry]:
    """8 bytes of length, then JSON. Raises UserError when the header and the file's size disagree."""
    try:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError(f"its header claims {length} bytes, the file has {size}")
        header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        entries = {
            name: TensorEntry(
                dtype=entry["dtype"],
                shape=tuple(entry["shape"]),
                begin=8 + length + entry["data_offsets"][0],
                end=8 + length + entry["data_offsets"][1],
            )
            for name, entry in header.items()
        }
        end = max((entry.end for entry in entries.values()), default=8 + length)
        if size != end:
            raise ValueError(f"it has {size} bytes, its header describes {end}")
        return entries
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise UserError(f"{file.name} is damaged: {error}") from error


def read_tensors(file: BinaryIO) -> Iterator[tuple[str, Tensor]]:
    """Tensors that share a private copy-on-write map of the file; they outlive its closing and deletion."""
    import torch

    entries = read_header(file)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    dtypes = {short: getattr(torch, name) for name, short in DTYPES.items()}

    def tensor(entry: TensorEntry) -> Tensor:
        dtype = dtypes[entry.dtype]
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=dtype)
        raw = torch.frombuffer(mapped, dtype=torch.uint8, count=entry.end - entry.begin, offset=entry.begin)
        if entry.begin % dtype.itemsize:
            raw = raw.clone()  # the format packs without gaps, so a file of mixed types may be misaligned
        return raw.view(dtype).reshape(entry.shape)

    return ((name, tensor(entry)) for name, entry in entries.items())


class WeightFile:
    """The tensors of an open file under their names. Readable by other processes of this host at `path`, also after
    the file was deleted, for as long as this object lives.
    """

    def __init__(self, path: Path) -> None:
        """Raises FileNotFoundError."""
        descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, descriptor)
        self.path = Path(f"/proc/{os.getpid()}/fd/{descriptor}")

    def entries(self) -> Iterator[tuple[str, Tensor]]:
        """Names, types and shapes alone: tensors on torch's meta device."""
        return ((name, tensor.to("meta")) for name, tensor in self)

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        with self.path.open("rb") as file:
            return read_tensors(file)


def read_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a folder, one file or shards. Raises UserError where it has none or a damaged one."""
    for path in weight_files(folder):
        with path.open("rb") as file:
            yield from read_tensors(file)


def write_tensors(file: BinaryIO, weights: Iterable[tuple[str, Tensor]], *, header_bytes: int = HEADER_BYTES) -> int:
    """Write tensors as they arrive; none may change before this returns.

    Returns the size that the header was given, for the next file of the same shapes. Raises ValueError for a
    name that comes twice.
    """
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 8 + header_bytes
    position = 0
    with ThreadPoolExecutor(WRITERS) as pool:
        writer = _Writer(file.fileno(), pool)
        for name, tensor in weights:
            if name in entries:
                raise ValueError(f"the weights contain {name!r} twice")
            end = position + tensor.nbytes
            writer.write(tensor, start + position)
            dtype = DTYPES[str(tensor.dtype).removeprefix("torch.")]
            entries[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [position, end]}
            position = end
        writer.finish()
    header = json.dumps(entries).encode()
    if len(header) > header_bytes:
        header_bytes = -(-len(header) // 8) * 8
        _move(file, start, 8 + header_bytes, position)
    file.seek(0)
    file.write(header_bytes.to_bytes(8, "little") + header.ljust(header_bytes))  # the format allows spaces
    return header_bytes


def write_folder(folder: Path, weights: Iterable[tuple[str, Tensor]]) -> None:
    """Write model.safetensors, or shards of at most MAX_SHARD_BYTES with their index."""
    shards: list[list[str]] = []
    total_bytes = 0
    left = iter(weights)
    head = next(left, None)

    def shard() -> Iterator[tuple[str, Tensor]]:
        nonlocal head, total_bytes
        names: list[str] = []
        shards.append(names)
        shard_bytes = 0
        while head is not None and (not names or shard_bytes + head[1].nbytes <= MAX_SHARD_BYTES):
            shard_bytes += head[1].nbytes
            total_bytes += head[1].nbytes
            names.append(head[0])
            yield head
            head = next(left, None)

    while head is not None:
        with (folder / f"part-{len(shards)}").open("w+b") as file:
            write_tensors(file, shard())
    if len(shards) == 1:
        (folder / "part-0").rename(folder / "model.safetensors")
        return
    placed: dict[str, str] = {}
    for number, names in enumerate(shards):
        final = f"model-{number + 1:05}-of-{len(shards):05}.safetensors"
        (folder / f"part-{number}").rename(folder / final)
        placed |= dict.fromkeys(names, final)
    index = {"metadata": {"total_size": total_bytes}, "weight_map": placed}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n")


class _Writer:
    """Writes tensors at their places in a file, several chunks at once.

    One thread takes longer to fill new pages than a GPU to deliver them. Tensors of a GPU pass through a few
    page-locked buffers, which are used in turn.
    """

    def __init__(self, descriptor: int, pool: ThreadPoolExecutor) -> None:
        self._descriptor = descriptor
        self._pool = pool
        self._running: deque[tuple[Future[None], Tensor | None]] = deque()  # each with its buffer
        self._buffers: list[Tensor] = []

    def write(self, tensor: Tensor, offset: int) -> None:
        """Returns before everything is written: a CPU tensor must stay as it is until `finish`."""
        import torch

        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        for begin in range(0, flat.numel(), CHUNK_BYTES):
            chunk = flat[begin : begin + CHUNK_BYTES]
            if len(self._running) >= 2 * WRITERS:
                self._wait_for_one()
            buffer = None
            if chunk.device.type != "cpu":
                new = not self._buffers
                buffer = torch.empty(CHUNK_BYTES, dtype=torch.uint8).pin_memory() if new else self._buffers.pop()
                chunk = buffer[: len(chunk)].copy_(chunk)
            self._running.append((self._pool.submit(_write_at, self._descriptor, chunk, offset + begin), buffer))

    def finish(self) -> None:
        """Raises the OSError of a write that failed."""
        while self._running:
            self._wait_for_one()

    def _wait_for_one(self) -> None:
        future, buffer = self._running.popleft()
        future.result()
        if buffer is not None:
            self._buffers.append(buffer)


def _write_at(descriptor: int, data: Tensor, offset: int) -> None:
    rest = data.numpy().data
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _move(file: BinaryIO, source: int, target: int, count: int, chunk: int = 2**24) -> None:
    """Shift bytes towards the file's end, last chunk first."""
    for begin in reversed(range(0, count, chunk)):
        file.seek(source + begin)
        data = file.read(min(chunk, count - begin))
        file.seek(target + begin)
        file.write(data)
