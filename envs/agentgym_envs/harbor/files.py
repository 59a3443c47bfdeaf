"""Files of a task folder as they go into a container: packed, filtered by .harborignore, links resolved."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from agentgym.errors import UserError

IGNORE: Final = ".harborignore"
MAX_BYTES: Final = 256 << 20


def check_links(task: Path) -> None:
    """Raises UserError for a link that leaves the task folder."""
    inside = task.resolve()
    for path in sorted(task.rglob("*")):
        if path.is_symlink() and not path.resolve().is_relative_to(inside):
            raise UserError(f"{path.relative_to(task)} is a link to {path.readlink()}, which leaves the task folder")


def pack(task: Path, *folders: Path, first: str = "") -> bytes:
    """The files of the folders, each laid over those before it, as a tar archive with names below them; owned by root.

    first: a file that has to be there, and is made executable. Raises UserError for more than 256 MiB.
    """
    found: dict[str, Path] = {}
    for folder in folders:
        found.update(_files(task, folder))
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(found.items()):
            info = tarfile.TarInfo(name)
            mode = path.stat().st_mode & 0o777
            if path.is_dir():
                info.type, info.mode = tarfile.DIRTYPE, mode | 0o755
                archive.addfile(info)
                continue
            data = path.read_bytes()
            info.size, info.mode = len(data), mode | (0o755 if name == first else 0o444)
            if out.tell() + len(data) > MAX_BYTES:
                raise UserError(f"{', '.join(map(str, folders))} has more than {MAX_BYTES >> 20} MiB")
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def digest_of(task: Path) -> str:
    """A hash of all that the folder contains: names, modes and bytes."""
    made = hashlib.sha256()
    for path in sorted(task.rglob("*")):
        is_file = path.is_file()
        made.update(f"{path.relative_to(task)}\0{path.stat().st_mode & 0o777:o}\0".encode())
        made.update(hashlib.sha256(path.read_bytes()).digest() if is_file else b"")
    return made.hexdigest()


def _files(task: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    rules: dict[Path, list[tuple[re.Pattern[str], bool]]] = {}
    top = folder if folder.name in ("tests", "solution") else None  # the rules of Harbor apply there alone
    ignored: set[Path] = set()
    for path in sorted(folder.rglob("*")):
        if path.name == IGNORE or path.parent in ignored:
            ignored.add(path)
            continue
        if top is not None and _is_ignored(path, top, rules):
            ignored.add(path)
            continue
        if path.is_dir() or path.is_file():
            yield path.relative_to(folder).as_posix(), path


def _is_ignored(path: Path, top: Path, rules: dict[Path, list[tuple[re.Pattern[str], bool]]]) -> bool:
    """Whether the last rule that matches, from the top folder down, excludes the path."""
    excluded = False
    above = [folder for folder in reversed(path.parents) if folder.is_relative_to(top)]
    for folder in above:
        if folder not in rules:
            rules[folder] = _rules(folder / IGNORE)
        name = path.relative_to(folder).as_posix() + ("/" if path.is_dir() else "")
        for pattern, excludes in rules[folder]:
            if pattern.fullmatch(name):
                excluded = excludes
    return excluded


def _rules(path: Path) -> list[tuple[re.Pattern[str], bool]]:
    """The lines of a file in the syntax of .gitignore."""
    found = []
    for line in path.read_text().splitlines() if path.is_file() else ():
        line = line.rstrip()
        if line and not line.startswith("#"):
            found.append((re.compile(_regex(line.removeprefix("!").removeprefix("\\"))), not line.startswith("!")))
    return found


def _regex(pattern: str) -> str:
    body = pattern.rstrip("/")
    anchored = "/" in body
    pieces = {"**/": "(?:.*/)?", "/**": "/.*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|/\*\*|\*\*|\*|\?|\[[^\]]*\])", body.removeprefix("/"))
    made = "".join(
        pieces.get(part) or (part.replace("[!", "[^") if part[:1] == "[" else re.escape(part)) for part in parts
    )
    return ("" if anchored else "(?:.*/)?") + made + ("/" if pattern.endswith("/") else "/?")
