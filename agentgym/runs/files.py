"""Files that stay readable when writing is interrupted: replaced whole, or appended line by line."""

from __future__ import annotations

import contextlib
import gzip
import json
import logging
import os
import shutil
import traceback
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, cast

from agentgym.errors import InfraError, UserError
from agentgym.types import Json

log = logging.getLogger(__name__)

MAKE_ROOM = (
    "What was saved before stays readable; make room or choose another `logging.runs_dir`, then continue with "
    "`agentgym train --resume RUN` (an evaluation: `agentgym eval --resume FOLDER`)."
)
MAX_JSON = 1 << 28  # bytes
_BLOCK = 1 << 16
NO_SPACE = ("No space left on device", "Disk quota exceeded", "StorageFull")  # the last one: of Rust


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by one rename, so that a reader sees the old or the new, never a part.

    Its folder is made, but none above: that of a run which was moved must not come back.
    Raises InfraError, which names the path, when the disk is full or the file can't be written.
    """
    part = path.with_name(f".{path.name}.part")
    with writing(path):
        path.parent.mkdir(exist_ok=True)
        try:
            with part.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
            sync(path.parent)
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
            raise


def sync_all(folder: Path) -> None:
    """Syncs a folder with everything below it, as `sync` does."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def publish(part: Path, target: Path) -> None:
    """Give a finished folder its name, in place of an older one, once all of it is on the disk."""
    sync_all(part)
    if target.exists():
        shutil.rmtree(target)
    part.rename(target)
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's entries, would outlast a power cut."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def overwrite(path: Path, data: bytes) -> None:
    """Write over a file that is at least as large, which a full disk allows. Raises InfraError as `write_whole`."""
    with writing(path), path.open("r+b") as file:
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())


def append_line(path: Path, line: str) -> None:
    """Append one line. What a failed write left is truncated.

    Raises InfraError, which names the path, when the disk is full or the file can't be written.
    """
    data = line.encode() + b"\n"
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            size = os.fstat(file).st_size
            if size and os.pread(file, 1, size - 1) != b"\n":  # another process died while it wrote a line
                data = b"\n" + data
            try:
                written = os.write(file, data)
                while written < len(data):  # a full disk first takes a part, then raises
                    written += os.write(file, data[written:])
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(file, size)
                raise
        finally:
            os.close(file)


def cut_torn_line(file: IO[bytes]) -> int:
    """Cuts off what a process that was killed left of its last line. Returns the length. Raises OSError."""
    end = size = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        found = os.pread(file.fileno(), end - start, start).rfind(b"\n")
        if found >= 0:
            end = start + found + 1
            break
        end = start
    if end < size:
        file.truncate(end)
    return end


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an InfraError that names the path and what to do."""
    try:
        yield
    except OSError as error:
        raise InfraError(f"can't write {path}: {error.strerror or error}. {MAKE_ROOM}") from error


@contextlib.contextmanager
def writing_output(path: Path, other: str = "file") -> Iterator[None]:
    """Make the folder of what the user asked for, and turn an OSError into a UserError that names the path.

    other: what to choose another of.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"can't write {path}: {error.strerror or error}; choose another {other}") from None
    except InfraError as error:
        if isinstance(error.__cause__, OSError):
            raise UserError(f"can't write {path}: {error.__cause__.strerror}; choose another {other}") from None
        raise


def full_disk(error: BaseException, folder: Path) -> InfraError | None:
    """What to do about an error that a full disk caused, wherever it was raised; None for any other."""
    text = "".join(traceback.format_exception(error))  # with its causes, and those of other processes
    if MAKE_ROOM in text or not (_is_full(folder) or any(words in text for words in NO_SPACE)):
        return None
    return InfraError(f"the disk of {folder} is full ({' '.join(str(error).split()):.300}). {MAKE_ROOM}")


def _is_full(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        return shutil.disk_usage(folder).free < 2**16
    return False


def write_json_lines(path: Path, records: Iterable[Mapping[str, Json]]) -> None:
    """A gzipped file with one JSON object a line, whole or not at all."""
    text = "".join(dump_line(record) + "\n" for record in records)
    write_whole(path, gzip.compress(text.encode(), compresslevel=3, mtime=0))


def read_json_lines(path: Path) -> Iterator[dict[str, Json]]:
    """The objects of a plain or gzipped file, one a line. A torn line is skipped and logged."""
    with open_text(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                try:
                    value = json.loads(line)
                except (json.JSONDecodeError, RecursionError):
                    log.warning("%s: line %d is torn and is skipped", path, number)
                    continue
                if isinstance(value, dict):
                    yield value
        except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
            log.warning("%s is torn and ends early: %s", path, error)


def open_text(path: Path) -> IO[str]:
    """A plain or gzipped file."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def read_json(path: Path, *, max_bytes: int = MAX_JSON) -> dict[str, Json]:
    """One JSON object. Raises UserError when the file holds something else, or more than so many bytes."""
    try:
        if (size := path.stat().st_size) > max_bytes:
            raise UserError(f"can't read {path}: it has {size:,} bytes, and at most {max_bytes:,} are read")
        value = json.loads(path.read_text(encoding="utf-8"))
    except UserError:
        raise
    except RecursionError:
        raise UserError(f"can't read {path}: it is nested too deep") from None
    except (OSError, ValueError) as error:
        raise UserError(f"can't read {path}: {str(error).partition(';')[0]}") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} holds a {type(value).__name__}, not a JSON object")
    return cast(dict[str, Json], value)


def dump_line(record: Mapping[str, Json]) -> str:
    """Pure ASCII: text written by a model may contain lone surrogates, which UTF-8 can't encode."""
    return json.dumps(record, separators=(",", ":"))
