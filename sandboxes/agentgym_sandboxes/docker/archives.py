"""Files of a container as tar archives: what comes out of one is checked, what goes into one is made here."""

from __future__ import annotations

import io
import posixpath
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from agentgym.errors import UserError
from agentgym.sandbox import FileRefused

MAX_ENTRIES = 200_000
CLOSED = ("/dev", "/proc", "/sys", "/.agentgym")  # mounts, which the engine's archives do not reach
_ORDINARY = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.GNUTYPE_SPARSE)


def checked_path(path: str) -> str:
    """An absolute path without dots. Raises FileRefused."""
    parts = path.split("/")
    if not path.startswith("/") or "\0" in path or ".." in parts:
        raise FileRefused(f"{path!r} is refused; give an absolute path without '..'")
    path = posixpath.normpath("/" + path.lstrip("/"))
    if any(path == one or path.startswith(f"{one}/") for one in CLOSED):
        raise FileRefused(f"{path!r} lies on a mount of the container's; files there are not reached")
    return path


class _Pieces(io.RawIOBase):
    """Bytes that come in pieces, as a file to read. Raises FileRefused beyond max_bytes."""

    def __init__(self, pieces: Iterable[bytes], max_bytes: int, what: str) -> None:
        self._pieces = iter(pieces)
        self._left = max_bytes
        self._what = what
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        while len(self._rest) < size and (piece := next(self._pieces, None)) is not None:
            self._left -= len(piece)
            if self._left < 0:
                raise FileRefused(f"{self._what} is too large: more than was allowed came from the container")
            self._rest += piece
        found, self._rest = self._rest[:size], self._rest[size:]
        return found


def file_of(pieces: Iterable[bytes], path: str, max_bytes: int) -> bytes:
    """The one regular file of an engine's archive. Raises FileRefused."""
    with _opened(pieces, max_bytes + (1 << 16), path) as archive:
        entry = archive.next()
        if entry is None or entry.type not in _ORDINARY:
            raise FileRefused(f"{path!r} is not a regular file")
        if entry.size > max_bytes:
            raise FileRefused(f"{path!r} has {entry.size} bytes; at most {max_bytes} are read")
        file = archive.extractfile(entry)
        return file.read() if file is not None else b""


def tree_of(
    pieces: Iterable[bytes], path: str, max_bytes: int, *, exclude: Sequence[str] = (), keep_links: bool = False
) -> bytes:
    """The engine's archive of a folder or a file, as `MachineFiles.get` gives it. Raises FileRefused."""
    out = io.BytesIO()
    folders, kept = {""}, set[str]()
    with (
        _opened(pieces, max_bytes + max_bytes // 4 + (1 << 20), path) as archive,
        tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        top = None
        for number, entry in enumerate(archive):
            if number >= MAX_ENTRIES:
                raise FileRefused(f"{path!r} has more than {MAX_ENTRIES} files")
            full = posixpath.normpath(entry.name)
            if top is None:
                if not (entry.isdir() or entry.type in _ORDINARY):
                    raise FileRefused(f"{path!r} is neither a folder nor a regular file")
                top = "" if entry.type in _ORDINARY else full
                if entry.isdir():
                    continue
            name = full if not top else posixpath.relpath(full, top)
            above = posixpath.dirname(name)
            if name.startswith(("..", "/")) or above not in folders or _excluded(name, exclude):
                continue
            if entry.isdir():
                folders.add(name)
            elif entry.issym():
                if not keep_links and _leaves(posixpath.join(above, entry.linkname)):
                    continue
            elif entry.islnk():
                target = posixpath.relpath(posixpath.normpath(entry.linkname), top or ".")
                if target not in kept:
                    continue
                entry.linkname = target
            elif entry.type not in _ORDINARY:
                continue
            if out.tell() + entry.size > max_bytes + (1 << 20):
                raise FileRefused(f"{path!r} has more than {max_bytes} bytes")
            _add(made, entry, name, archive)
            if not entry.isdir() and not entry.issym():
                kept.add(name)
    return out.getvalue()


def _opened(pieces: Iterable[bytes], max_bytes: int, path: str) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=_Pieces(pieces, max_bytes, repr(path)), mode="r|", bufsize=1 << 20)
    except tarfile.TarError as error:
        raise FileRefused(f"{path!r} could not be read: {error}") from error


def _add(made: tarfile.TarFile, entry: tarfile.TarInfo, name: str, archive: tarfile.TarFile) -> None:
    file = archive.extractfile(entry) if entry.type in _ORDINARY else None
    plain = tarfile.TarInfo(name)
    plain.type = tarfile.REGTYPE if file is not None else entry.type
    plain.size = entry.size if file is not None else 0
    plain.mode = entry.mode & 0o777
    plain.uid, plain.gid, plain.mtime, plain.linkname = entry.uid, entry.gid, entry.mtime, entry.linkname
    made.addfile(plain, file)


def _excluded(name: str, patterns: Sequence[str]) -> bool:
    """As `tar --exclude`: a pattern may match at any part of a name. What is below an excluded folder has none."""
    parts = name.split("/")
    ends = ["/".join(parts[start:]) for start in range(len(parts))]
    return any(fnmatchcase(end, pattern.rstrip("/")) for pattern in patterns for end in ends)


def _leaves(target: str) -> bool:
    return target.startswith("/") or posixpath.normpath(target).split("/")[0] == ".."


def packed(folder: str, files: bytes | Mapping[str, bytes] | Path, *, replace: bool, owner: int) -> bytes:
    """The archive that the engine unpacks at the root, for files in a folder. Raises UserError, FileRefused.

    replace: a file takes the folder's place first, so that nothing and no link is left of it.
    """
    out = io.BytesIO()
    at = folder.lstrip("/")
    if not at and replace:
        raise FileRefused("the root folder can't be replaced")
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as made:
        if replace:
            made.addfile(tarfile.TarInfo(at))
            made.addfile(_folder(at, owner))
        for info, data in _entries(files, owner):
            info.name = f"{at}/{info.name}" if at else info.name
            if info.islnk():
                info.linkname = f"{at}/{info.linkname}" if at else info.linkname
            info.pax_headers = {}  # a path that was read from one, being long or not ASCII, would be written again
            made.addfile(info, io.BytesIO(data) if info.isreg() else None)
    return out.getvalue()


def _folder(name: str, owner: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mtime = time.time()
    info.type, info.mode, info.uid, info.gid = tarfile.DIRTYPE, 0o755, owner, owner
    return info


def _entries(files: bytes | Mapping[str, bytes] | Path, owner: int) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    if isinstance(files, bytes):
        try:
            with tarfile.open(fileobj=io.BytesIO(files)) as archive:
                for entry in archive:
                    file = archive.extractfile(entry) if entry.isreg() else None
                    yield entry, file.read() if file is not None else b""
        except tarfile.TarError as error:
            raise UserError(f"the files to put are not a tar archive: {error}") from error
        return
    if isinstance(files, Path):
        yield from _of_folder(files, owner)
        return
    for name in sorted({up for path in files for up in _above(path)}):
        yield _folder(name, owner), b""
    for path, data in files.items():
        info = tarfile.TarInfo(path)
        info.size, info.uid, info.gid = len(data), owner, owner
        info.mode, info.mtime = 0o755 if data.startswith(b"#!") else 0o644, time.time()
        yield info, data


def _of_folder(folder: Path, owner: int) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    if not folder.is_dir():
        raise UserError(f"{str(folder)!r} is not a folder of this machine")
    for path in sorted(folder.rglob("*")):
        info = tarfile.TarInfo(path.relative_to(folder).as_posix())
        info.uid = info.gid = owner
        info.mode, info.mtime = path.lstat().st_mode & 0o777, path.lstat().st_mtime
        if path.is_symlink():
            info.type, info.linkname = tarfile.SYMTYPE, str(path.readlink())
            yield info, b""
        elif path.is_dir():
            info.type = tarfile.DIRTYPE
            yield info, b""
        elif path.is_file():
            data = path.read_bytes()
            info.size = len(data)
            yield info, data


def _above(path: str) -> Iterator[str]:
    if path.startswith("/") or ".." in path.split("/") or not path:
        raise FileRefused(f"{path!r} is refused; give a path below the folder")
    while path := posixpath.dirname(path):
        yield path
