"""Undoes, before tests run, what an agent changed of the programs and libraries that the tests themselves run with.

Such a change is one of the image's own programs or libraries that was replaced or deleted, a new program that hides
one of them, or a file that Python, pytest or the loader would read at their start. Nothing in the agent's container
is run for it: what differs is known from the engine, and files are taken from the untouched image.
"""

from __future__ import annotations

import hashlib
import io
import posixpath
import tarfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from agentgym.sandbox import FileChange, FileRefused, FrozenMachine, Machine, MachineFiles

PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_LIBRARIES: Final = (
    "/lib",
    "/lib32",
    "/lib64",
    "/usr/lib",
    "/usr/lib32",
    "/usr/lib64",
    "/usr/local/lib",
    "/usr/libexec",
)
_LOADER: Final = ("/etc/ld.so.preload", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld-musl-")
_HOOKS: Final = ("sitecustomize", "usercustomize", "conftest")  # modules that Python and pytest import by themselves
_OF_PYTEST: Final = ("pytest.ini", ".pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml")
_PACKAGES: Final = ("site-packages", "dist-packages")
_OF_TESTS: Final = ("/tests/", "/logs/verifier/", "/solution/")
_MAX_BYTES: Final = 256 << 20
_LINKS_BYTES: Final = 64 << 20  # of a folder in which links are looked for
_MAX_FOLDERS: Final = 8
Entry = tuple[str, str, str]
"""What a file is: its kind, the target of a link, a hash of its bytes."""


class Tampered(Exception):
    """What an agent changed could not be undone."""


def may_be_system(changes: Iterable[FileChange], path: Sequence[str]) -> bool:
    """Whether some of the changes may have to be undone, for which the untouched image has to be asked."""
    return any(
        _is_guarded(one, path) or posixpath.dirname(one.path) in path or {*_PACKAGES} & {*one.path.split("/")}
        for one in changes
    )


async def system_changes(
    changes: Sequence[FileChange], path: Sequence[str], untouched: MachineFiles, *, allowed: Collection[str] = ()
) -> dict[str, FileChange]:
    """The changes that are to be undone, by path. path: the image's PATH. allowed: what the oracle changes, too."""
    folders = _folders(changes)
    found: dict[str, FileChange] = {}
    for change in changes:
        if change.path in allowed or (change.path in folders and change.kind != "deleted"):
            continue  # of a folder, what changed in it is listed, too
        if _is_guarded(change, path) or await _hides(change, path, untouched):
            found[change.path] = change
    return found


def _folders(changes: Iterable[FileChange]) -> set[str]:
    """Paths below which something changed."""
    found: set[str] = set()
    for change in changes:
        above = posixpath.dirname(change.path)
        while above not in found and above != "/":
            found.add(above)
            above = posixpath.dirname(above)
    return found


def _is_guarded(change: FileChange, path: Sequence[str]) -> bool:
    at, added = change.path, change.kind == "added"
    parent, base = posixpath.split(at)
    parts = at.split("/")
    if base.partition(".")[0] in _HOOKS or {"sitecustomize", "usercustomize"} & {*parts} or at.startswith(_LOADER):
        return True
    if base in _OF_PYTEST[:2] or (parent == "/" and base in _OF_PYTEST):
        return True
    if base.endswith(".pth") and {*_PACKAGES} & {*parts}:
        return True
    if added:
        return False
    return parent in path or at in path or any(at == one or at.startswith(f"{one}/") for one in _LIBRARIES)


async def _hides(change: FileChange, path: Sequence[str], untouched: MachineFiles) -> bool:
    """Whether a new program or Python package has the name of one that the image has elsewhere."""
    if change.kind != "added":
        return False
    parent, base = posixpath.split(change.path)
    if parent in path:
        others = [f"{folder}/{base}" for folder in path if folder != parent]
    else:
        parts = change.path.split("/")
        at = next((number for number, part in enumerate(parts) if part in _PACKAGES), None)
        if at is None or at + 1 >= len(parts):
            return False
        name = parts[at + 1].removesuffix(".py")
        here = "/".join(parts[: at + 1])
        version = parts[at - 1]
        folders = (
            "/usr/lib/python3/dist-packages",
            *(f"{lib}/{version}/{one}" for lib in _LIBRARIES for one in _PACKAGES),
        )
        others = [f"{one}/{name}{end}" for one in folders if one != here for end in (".py", "/__init__.py")]
    for other in others:
        if await _entry(untouched, other, links=parent in path) is not None:
            return True
    return False


async def links_to_tests(frozen: FrozenMachine, work: str) -> list[FileChange]:
    """Links of the agent's that lead to where tests will be: in its work folder, and in others where it left files."""
    here = [one for one in frozen.changes if one.kind != "deleted" and not one.path.startswith(_LIBRARIES)]
    parents = [one for one in dict.fromkeys(posixpath.dirname(change.path) for change in here) if one != "/"]
    found: dict[str, FileChange] = {}
    for folder in dict.fromkeys([work, *parents[:_MAX_FOLDERS]]):
        try:
            archive = await frozen.get(folder, max_bytes=_LINKS_BYTES, keep_links=True)
        except FileRefused:
            continue
        with tarfile.open(fileobj=io.BytesIO(archive)) as read:
            for entry in read:
                at = posixpath.join(folder, entry.name)
                to = posixpath.normpath(posixpath.join(posixpath.dirname(at), entry.linkname))
                if entry.issym() and f"{to}/".startswith(_OF_TESTS):
                    found[at] = FileChange(path=at, kind="added")
    return list(found.values())


async def restore(machine: Machine, untouched: MachineFiles, changed: Mapping[str, FileChange]) -> dict[str, Entry]:
    """Put the image's files back into a container, and empty folders in place of new files; what each path is then.

    Raises Tampered where that is not possible.
    """
    made: dict[str, Entry] = {}
    try:
        for at, change in changed.items():
            parent, base = posixpath.split(at)
            archive = _nothing(base) if change.kind == "added" else await _original(untouched, at)
            if archive is None:
                raise Tampered(f"{at} could not be taken from the image")
            await machine.put(parent, archive)
            made[at] = _first(archive, base)
    except FileRefused as error:
        raise Tampered(f"system files could not be restored: {error}") from error
    return made


def _nothing(base: str) -> bytes:
    """An empty folder, which no shell, loader or Python takes for a program, a library or a module."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        info = tarfile.TarInfo(base)
        info.type, info.mode = tarfile.DIRTYPE, 0o755
        made.addfile(info)
    return out.getvalue()


async def check_restored(frozen: FrozenMachine, made: Mapping[str, Entry], left: Collection[str]) -> None:
    """Raises Tampered where a frozen container differs from what `restore` put there. left: its system changes."""
    for at in left:
        if at not in made:
            raise Tampered(f"{at} was changed again while the container was frozen")
    for at, entry in made.items():
        if await _entry(frozen, at, links=True) != entry:
            raise Tampered(f"{at} was changed again after it was restored")


async def _original(files: MachineFiles, at: str) -> bytes | None:
    """A tar archive of a path with its last name, and of all below a folder; None where there is nothing."""
    parent, base = posixpath.split(at)
    try:
        archive = await files.get(at, max_bytes=_MAX_BYTES, keep_links=True)
        if _is_file(archive, base):
            return archive
        return _selected(archive, lambda name: True, f"{base}/")
    except FileRefused:
        pass  # a link, or missing
    try:
        archive = await files.get(parent, max_bytes=_MAX_BYTES, keep_links=True)
    except FileRefused:
        return None
    found = _selected(archive, lambda name: name == base)
    return found if _names(found) else None


def _is_file(archive: bytes, base: str) -> bool:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        entry = read.next()
        return entry is not None and entry.name == base and entry.isreg() and read.next() is None


def _selected(archive: bytes, wants, prefix: str = "") -> bytes:  # type: ignore[no-untyped-def]
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as read, tarfile.open(fileobj=out, mode="w") as made:
        if prefix:
            top = tarfile.TarInfo(prefix.rstrip("/"))
            top.type, top.mode = tarfile.DIRTYPE, 0o755
            made.addfile(top)
        for entry in read:
            if wants(entry.name):
                file = read.extractfile(entry) if entry.isreg() else None
                entry.name = prefix + entry.name
                if entry.islnk():
                    entry.linkname = prefix + entry.linkname
                entry.pax_headers = {}  # they have the name of a path that is long or not ASCII
                made.addfile(entry, file)
    return out.getvalue()


def _names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        return read.getnames()


async def _entry(files: MachineFiles, at: str, *, links: bool) -> Entry | None:
    """links: a link counts, too, for which the folder above is read."""
    if not links:
        try:
            return ("file", "", hashlib.sha256(await files.get_file(at, max_bytes=_MAX_BYTES)).hexdigest())
        except FileRefused:
            return None
    archive = await _original(files, at)
    return None if archive is None else _first(archive, posixpath.basename(at))


def _first(archive: bytes, base: str) -> Entry:
    with tarfile.open(fileobj=io.BytesIO(archive)) as read:
        entry = next(one for one in read if one.name == base)
        if entry.issym() or entry.islnk():
            return ("link", entry.linkname, "")
        if entry.isdir():
            return ("folder", "", hashlib.sha256("\n".join(sorted(read.getnames())).encode()).hexdigest())
        file = read.extractfile(entry)
        return ("file", "", hashlib.sha256(file.read() if file else b"").hexdigest())
