"""A session's work folder as a tar archive: folders and regular files, their modes and times, no owner."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from typing import IO, NamedTuple, cast

from . import files
from .files import Refused

_NOT_ALLOWED = "a snapshot holds folders and regular files only, with paths below the work folder"
_BLOCK_BYTES = 4096
_MAX_NAME_BYTES = 255


class Needs(NamedTuple):
    """What the members of an archive take: bytes, in blocks, and files and folders."""

    num_bytes: int
    num_files: int


def pack(root: int, out: int, max_bytes: int) -> None:
    """Write the archive to descriptor `out`. Raises Refused when it would be too large."""
    found = files.entries(root, [])
    size = sum(entry.size + 1024 for entry in found)
    if size > max_bytes:
        raise _too_large(max_bytes)
    with (
        open(out, "wb", closefd=False) as stream,
        tarfile.open(
            fileobj=cast("IO[bytes]", _Bounded(stream, max_bytes)), mode="w|", format=tarfile.PAX_FORMAT
        ) as archive,
    ):
        for entry in found:
            member = tarfile.TarInfo(entry.path)
            member.mode, member.mtime, member.size = entry.mode, entry.mtime, entry.size
            if entry.is_folder:
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
                continue
            fd = files.open_file(root, entry.path.split("/"))
            with open(fd, "rb") as file:
                try:
                    archive.addfile(member, file)
                except OSError as error:
                    raise Refused(f"{entry.path!r} changed while it was read; try again") from error


class _Bounded:
    """A stream that takes so many bytes: headers of long names are not known before they are written."""

    def __init__(self, stream: IO[bytes], max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._num_bytes = 0

    def write(self, data: bytes) -> int:
        self._num_bytes += len(data)
        if self._num_bytes > self._max_bytes:
            raise _too_large(self._max_bytes)
        return self._stream.write(data)


def _too_large(max_bytes: int) -> Refused:
    return Refused(f"the work folder is too large, and a snapshot at most {max_bytes >> 20} MiB; remove files")


def check(data: bytes, max_bytes: int) -> Needs:
    """Raises Refused unless every member may be put below a work folder."""
    num_bytes = num_block_bytes = 0
    regular: set[tuple[str, ...]] = set()
    folders: set[tuple[str, ...]] = set()
    for index, (member, names) in enumerate(_members(data)):
        num_bytes += member.size
        num_block_bytes += -(-member.size // _BLOCK_BYTES) * _BLOCK_BYTES
        num_files = max(index, len(regular) + len(folders))
        if not (member.size >= 0 and num_bytes <= max_bytes and num_files < files.MAX_ENTRIES):
            raise Refused(f"the snapshot holds more than {max_bytes >> 20} MiB or {files.MAX_ENTRIES} members")
        above = {names[:depth] for depth in range(1, len(names))}
        folders |= above
        if member.isdir():
            folders.add(names)  # as often as it likes
        elif names in regular or not names:
            raise Refused(f"{member.name!r} is in the snapshot twice; {_NOT_ALLOWED}")
        else:
            regular.add(names)
    if regular & folders:
        name = "/".join(min(regular & folders))
        raise Refused(f"{name!r} is a file and a folder in the snapshot; {_NOT_ALLOWED}")
    return Needs(num_block_bytes, len(regular) + len(folders - {()}))


def check_room(needs: Needs, *, block_bytes: int, num_blocks: int, num_files: int) -> None:
    """Raises Refused unless it fits into a file system that is empty. num_files: 0 when that counts none."""
    room = block_bytes * num_blocks
    if needs.num_bytes > room or 0 < num_files < needs.num_files + 2:  # its own folder, the work folder
        raise Refused(
            f"the snapshot takes {needs.num_bytes >> 20} MiB and {needs.num_files} files and folders, and there "
            f"is room for {room >> 20} MiB and {num_files or 'any number'}; use a larger work folder"
        )


def unpack(root: int, data: bytes) -> None:
    """Put all members of a checked archive below the root, which is empty."""
    modes: dict[tuple[str, ...], tuple[int, int]] = {}  # once each: the first may close the folder to us
    for member, names in _members(data):
        mode = member.mode & 0o777
        if not names:
            continue  # the work folder itself
        try:
            if member.isdir():
                os.close(files.open_folder(root, names, make=True))
                modes[names] = mode, _mtime(member)
                continue
            folder = files.open_folder(root, names[:-1], make=True)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                fd = os.open(names[-1], flags, 0o600, dir_fd=folder)
                try:
                    start = member.offset_data
                    files.write_content(fd, data[start : start + member.size], mode)
                    os.utime(fd, (_mtime(member), _mtime(member)))
                finally:
                    os.close(fd)
            finally:
                os.close(folder)
        except OSError as error:
            raise files.refusal(member.name, error) from error
    for names, (mode, mtime) in sorted(modes.items(), reverse=True):  # the inner ones first
        folder = files.open_folder(root, names)
        try:
            os.utime(folder, (mtime, mtime))
            os.fchmod(folder, mode)
        finally:
            os.close(folder)


def _mtime(member: tarfile.TarInfo) -> int:
    try:
        return min(max(0, int(member.mtime)), 1 << 33)
    except (ValueError, OverflowError):  # an extended header may say nan
        return 0


def _members(data: bytes) -> Iterator[tuple[tarfile.TarInfo, tuple[str, ...]]]:
    """The members with the names on their way. Raises Refused for links, devices and paths that leave."""
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                if member.issym() or member.islnk():
                    raise Refused(f"{member.name!r} is a link; {_NOT_ALLOWED}")
                if not (member.isdir() or member.isreg()) or member.issparse():
                    raise Refused(f"{member.name!r} is no plain file; {_NOT_ALLOWED}")
                if member.name.startswith("/") or ".." in member.name.split("/"):
                    raise Refused(f"{member.name!r} leaves the work folder; {_NOT_ALLOWED}")
                if member.offset_data + member.size > len(data) and member.isreg():
                    raise Refused("the snapshot ends too early; take it again")
                names = tuple(files.components(member.name, "/"))
                if any(len(name.encode()) > _MAX_NAME_BYTES for name in names):
                    raise Refused(f"{member.name[:80]!r}... holds a name of more than {_MAX_NAME_BYTES} bytes")
                yield member, names
            end = data[archive.offset : archive.offset + tarfile.BLOCKSIZE]
            if end != bytes(tarfile.BLOCKSIZE):  # tarfile takes a damaged header for the end
                raise Refused("the snapshot is damaged or ends too early; take it again")
    except Refused:
        raise
    except Exception as error:  # tarfile meets bad bytes with errors of many kinds
        kind = cast(type, type(error)).__name__
        raise Refused(f"the snapshot is no tar archive ({kind}: {str(error)[:100]})") from error
