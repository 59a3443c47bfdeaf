"""Files of a session's work folder, for a child of ours that has the session's rights on files and no more.

Every component of a path is opened by itself, without following a link: whatever the session does to its
folders meanwhile, nothing outside the work folder is touched. What is refused says what to do instead.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

MAX_ENTRIES = 20_000
MAX_DEPTH = 100
MAX_CHARS = 8 << 20  # of all paths: written out, and in an archive, they take some bytes each
MAX_TEXT = 1000
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MIB = 1 << 20


class Refused(Exception):
    """A file can't be handed over; the text is one sentence or two."""

    def __init__(self, text: str) -> None:
        super().__init__(text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + "...")


class Entry(NamedTuple):
    """A folder or a regular file. path: relative to the work folder."""

    path: str
    is_folder: bool
    size: int
    mode: int
    mtime: int


def open_root(work: str) -> int:
    """The work folder, made again when the session removed it."""
    try:
        os.mkdir(work, 0o700)
    except FileExistsError:
        pass
    except OSError as error:
        raise refusal(work, error) from error
    try:
        return os.open(work, _FOLDER_FLAGS)
    except OSError as error:
        raise Refused(f"the work folder can't be opened ({error.strerror}); reset the session") from error


def base_of(path: str, work: str) -> str:
    """The folder that a path is opened from, where all of a container's files may be: the work folder, or the root."""
    outside = path.startswith("/") and path != work and not path.startswith(work.rstrip("/") + "/")
    return "/" if outside else work


def components(path: str, work: str) -> list[str]:
    """The names on the way from the work folder. Raises Refused for a path that leaves it."""
    if "\0" in path:
        raise Refused(f"{path!r} holds a NUL byte; leave it out")
    if not _is_text(path):
        raise Refused(f"{path!r} is no text that can be written as UTF-8; use another name")
    relative = path
    if path.startswith("/"):
        if path != work and not path.startswith(work.rstrip("/") + "/"):
            raise Refused(f"{path!r} lies outside the work folder; use a path relative to it")
        relative = path[len(work) :]
    names = [name for name in relative.split("/") if name not in ("", ".")]
    if ".." in names:
        raise Refused(f"{path!r} has a '..', which is not allowed; use a path below the work folder")
    if len(names) > MAX_DEPTH:
        raise Refused(f"{path[:80]!r}... is more than {MAX_DEPTH} folders deep; use a shorter path")
    return names


def open_folder(root: int, names: Sequence[str], *, make: bool = False) -> int:
    """A new descriptor of the folder."""
    folder = os.dup(root)
    for index, name in enumerate(names):
        try:
            if make:
                try:
                    os.mkdir(name, 0o755, dir_fd=folder)
                except FileExistsError:
                    pass
            inner = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
        except OSError as error:
            refused = _refusal_at(folder, name, "/".join(names[: index + 1]), error)
            os.close(folder)
            raise refused from error
        os.close(folder)
        folder = inner
    return folder


def open_file(root: int, names: Sequence[str]) -> int:
    """A descriptor to read a regular file."""
    path = "/".join(names)
    if not names:
        raise Refused("the work folder is a folder; name a file in it")
    folder = open_folder(root, names[:-1])
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        fd = os.open(names[-1], flags, dir_fd=folder)
    except OSError as error:
        raise _refusal_at(folder, names[-1], path, error) from error
    finally:
        os.close(folder)
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        raise _no_file(path, mode)
    return fd


def read(root: int, names: Sequence[str], max_bytes: int) -> bytes:
    """The content of a regular file of at most max_bytes."""
    fd = open_file(root, names)
    with open(fd, "rb", buffering=0) as file:
        size = os.fstat(fd).st_size
        if size <= max_bytes:
            pieces: list[bytes] = []
            num_read = 0
            while num_read <= max_bytes:
                piece = file.read(_MIB)
                if not piece:
                    return b"".join(pieces)
                pieces.append(piece)
                num_read += len(piece)
            size = num_read
    raise Refused(f"{'/'.join(names)!r} has {size} bytes; at most {max_bytes} are read: make it smaller or read a part")


def write(root: int, names: Sequence[str], data: bytes) -> None:
    """Make or replace a regular file, at once or not at all; a replaced one keeps its mode."""
    path = "/".join(names)
    if not names:
        raise Refused("the work folder is a folder; name a file in it")
    folder = open_folder(root, names[:-1], make=True)
    name, draft = names[-1], f".write-{os.getpid()}"
    try:
        mode = 0o644
        try:
            old = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if not stat.S_ISREG(old):
                raise _no_file(path, old)
            mode = stat.S_IMODE(old)
        except FileNotFoundError:
            pass
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(draft, flags, 0o600, dir_fd=folder)
        try:
            write_content(fd, data, mode)
            os.rename(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            os.unlink(draft, dir_fd=folder)
            raise
        finally:
            os.close(fd)
    except OSError as error:
        raise refusal(path, error) from error
    finally:
        os.close(folder)


def write_content(fd: int, data: bytes, mode: int) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view[:_MIB]) :]
    os.fchmod(fd, mode)


def entries(root: int, names: Sequence[str]) -> list[Entry]:
    """All folders and regular files below a folder, by path; other things, and names that are not text, are
    left out. A folder whose mode closes it to its owner is there without what it holds."""
    os.close(open_folder(root, names))
    found: list[Entry] = []
    num_chars = 0
    pending = [list(names)]
    while pending:
        above = pending.pop()
        if len(above) > MAX_DEPTH:
            raise Refused(f"there are files more than {MAX_DEPTH} folders deep; move them or remove them")
        try:
            folder = open_folder(root, above)
        except Refused:
            continue  # closed by its mode, or gone meanwhile
        try:
            with os.scandir(folder) as items:
                for item in items:
                    try:
                        info = item.stat(follow_symlinks=False)
                    except (FileNotFoundError, PermissionError):
                        continue  # gone meanwhile, or in a folder whose mode shows names alone
                    is_folder = stat.S_ISDIR(info.st_mode)
                    if not (is_folder or stat.S_ISREG(info.st_mode)) or not _is_text(item.name):
                        continue
                    path = "/".join([*above, item.name])
                    num_chars += len(path)
                    size = 0 if is_folder else info.st_size
                    mode, mtime = stat.S_IMODE(info.st_mode), int(info.st_mtime)
                    found.append(Entry(path, is_folder, size, mode, mtime))
                    if is_folder:
                        pending.append([*above, item.name])
        finally:
            os.close(folder)
        if len(found) > MAX_ENTRIES or num_chars > MAX_CHARS:
            raise Refused(
                f"there are more than {MAX_ENTRIES} files, or {MAX_CHARS >> 20} Mi characters of paths; "
                "name a folder that holds fewer"
            )
    return sorted(found)


def refusal(path: str, error: OSError) -> Refused:
    if error.errno == errno.ENOENT:
        return Refused(f"there is no file {path!r} in the work folder; list its files to see what is there")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Refused(f"there is no room left for {path!r} in the sandbox; remove files that are not needed")
    if error.errno == errno.EFBIG:
        return Refused(f"{path!r} would be larger than a file may be in this sandbox; write less")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Refused(f"the mode of {path!r} or of a folder above it forbids this; change it with chmod")
    return Refused(f"{path[:200]!r}: {error.strerror}")


def _refusal_at(folder: int, name: str, path: str, error: OSError) -> Refused:
    """Why `name` in a folder could not be opened."""
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except OSError:
            return refusal(path, error)
        if stat.S_ISREG(mode):
            return Refused(f"{path!r} is a file, no folder")
        return _no_file(path, mode)
    return refusal(path, error)


def _no_file(path: str, mode: int) -> Refused:
    if stat.S_ISDIR(mode):
        return Refused(f"{path!r} is a folder; name a file in it")
    if stat.S_ISLNK(mode):
        return Refused(f"{path!r} is a link, and links are not followed; name the file itself")
    return Refused(f"{path!r} is no regular file; only regular files are handed over")


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
