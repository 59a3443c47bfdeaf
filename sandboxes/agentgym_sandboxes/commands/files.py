"""Copies files into a session's work folder and out of it; every name that comes back is untrusted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from agentgym.errors import UserError
from agentgym.sandbox import FileRefused, Session


def read_files_in(paths: Sequence[str]) -> dict[str, bytes]:
    """Files by the path that they get: a file its name, a folder's files their paths in it.

    Raises UserError for unreadable files and for duplicate names.
    """
    found: dict[str, bytes] = {}
    for given in map(Path, paths):
        if given.is_dir():
            inside = sorted(path for path in given.rglob("*") if path.is_file() and not path.is_symlink())
            named = [(path.relative_to(given).as_posix(), path) for path in inside]
        else:
            named = [(given.name, given)]
        for name, path in named:
            if name in found:
                raise UserError(f"--files-in names {name!r} twice")
            try:
                found[name] = path.read_bytes()
            except OSError as error:
                raise UserError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    return found


async def write_files_out(session: Session, folder: Path) -> list[str]:
    """Write the work folder's files into an empty folder; their paths.

    Raises FileRefused for a path that leaves the folder.
    """
    written = []
    for info in await session.files():
        target = folder / inner_path(info.path)
        if info.is_folder:
            target.mkdir(parents=True, exist_ok=True)
            continue
        data = await session.read(info.path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:  # never overwrites, and follows no link
            file.write(data)
        written.append(str(target))
    return written


def check_empty(folder: Path) -> None:
    """Create it when it is missing. Raises UserError when it is not empty."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UserError(f"--files-out {str(folder)!r} is not empty; name a new folder")
    except OSError as error:
        raise UserError(f"cannot create the folder {str(folder)!r}: {error.strerror or error}") from None


def inner_path(path: str) -> PurePosixPath:
    """A relative path of plain names. Raises FileRefused: a sandbox must not choose where we write."""
    inner = PurePosixPath(path)
    if inner.is_absolute() or not inner.parts or ".." in inner.parts or "\0" in path:
        raise FileRefused(f"the sandbox named a file {path!r}, which leaves the folder")
    return inner
