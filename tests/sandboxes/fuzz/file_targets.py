"""Files of a session: no path and no archive leads out of the work folder, whatever lies in it."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from agentgym_sandboxes.agent import archive, files
from fuzz import mutation
from fuzz.running import Target

SECRET = b"the secret outside"
NAMES = [
    "a", "b", "c", "link", "loop", "up", "out", "fifo", "gone", "..", ".", "", "é", "\ud800", "\x00",
    "x" * 300, "a\nb", "~",
]  # fmt: skip


class _Place:
    """A work folder with all that is awkward in it, and a folder beside it that must stay as it is."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.outside = folder / "outside"
        self.outside.mkdir()
        (self.outside / "secret").write_bytes(SECRET)
        self.before = self._seen()

    def fill(self, random: Random) -> None:
        self.work.mkdir()
        folders = [self.work]
        for _ in range(random.randint(0, 6)):
            above, name = random.choice(folders), random.choice(NAMES[:9])
            path = above / name
            if path.is_symlink() or path.exists():
                continue
            roll = random.random()
            if roll < 0.4:
                path.mkdir()
                folders.append(path)
            elif roll < 0.6:
                path.write_bytes(b"inside")
            elif roll < 0.65:
                os.mkfifo(path)
            else:
                targets = ["..", "../outside", "../outside/secret", str(self.outside),
                str(self.outside / "secret"), name, "a", "/proc/self/root",
                           "/dev/zero", "nowhere"]  # fmt: skip
                path.symlink_to(random.choice(targets))

    def check(self) -> None:
        assert self._seen() == self.before, "something outside was changed"

    def _seen(self) -> list[tuple[str, bytes]]:
        return sorted((str(path), path.read_bytes()) for path in self.outside.rglob("*") if path.is_file())


@contextmanager
def _place(random: Random) -> Iterator[tuple[_Place, int]]:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-files-"))
    try:
        place = _Place(folder)
        place.fill(random)
        root = files.open_root(str(place.work))
        try:
            yield place, root
        finally:
            os.close(root)
        place.check()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def random_path(random: Random, work: Path) -> str:
    path = "/".join(random.choice(NAMES) for _ in range(random.choice((1, 1, 2, 2, 3, 5, 150))))
    roll = random.random()
    if roll < 0.1:
        return "/" + path
    if roll < 0.2:
        return f"{work}/{path}"
    if roll < 0.25:
        return f"{work}/../outside/secret"
    there = [Path(above, name) for above, folders, names in os.walk(work) for name in (*folders, *names)]
    if there and roll < 0.75:
        path = str(random.choice(there).relative_to(work))
        return path if random.random() < 0.7 else f"{path}/{random.choice((*NAMES, 'secret'))}"
    return path


def paths(random: Random) -> None:
    """Reads and lists what lies within, writes there, or refuses."""
    with _place(random) as (place, root):
        for _ in range(8):
            path = random_path(random, place.work)
            try:
                names = files.components(path, str(place.work))
                todo = random.random()
                if todo < 0.4:
                    assert files.read(root, names, 1 << 20) in (b"inside", b"written")
                elif todo < 0.8:
                    files.write(root, names, b"written")
                    assert files.read(root, names, 1 << 20) == b"written"
                else:
                    for entry in files.entries(root, names):
                        found = place.work / entry.path
                        assert not found.is_symlink() and (found.is_dir() or found.is_file())
                        assert found.resolve().is_relative_to(place.work.resolve())
            except files.Refused as refused:
                str(refused).encode()


def random_archive(random: Random) -> bytes:
    """A tar archive with members that a good one has, and some that it must not."""
    out = io.BytesIO()
    with tarfile.open(
        fileobj=out, mode="w", format=random.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT))
    ) as tar:
        for _ in range(random.randint(0, 5)):
            member = tarfile.TarInfo(
                random_path(random, Path("/work-folder"))[:90].replace("\x00", "0").replace("\ud800", "8")
            )
            kinds = (
                [tarfile.REGTYPE] * 5
                + [tarfile.DIRTYPE] * 3
                + [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
            )
            member.type = random.choice(kinds)
            member.mode = random.choice((0o644, 0o755, 0o7777, 0, 0o600))
            member.mtime = random.choice((0, 1_700_000_000, -1, 1 << 40))
            member.linkname = random.choice(("", "../outside/secret", "a"))
            data = b"unpacked" * random.randint(0, 3) if member.isreg() else b""
            member.size = len(data)
            try:
                tar.addfile(member, io.BytesIO(data))
            except (ValueError, OSError):
                continue  # this format can't hold it
    return out.getvalue()


def archives(random: Random) -> None:
    """An archive is put below the folder, or refused before anything is."""
    data = random_archive(random)
    if random.random() < 0.5:
        data = mutation.spoil(random, data)
    with _place(random) as (place, _):
        shutil.rmtree(place.work)
        root = files.open_root(str(place.work))
        try:
            archive.check(data, 1 << 20)
            archive.unpack(root, data)
        except files.Refused as refused:
            str(refused).encode()
        finally:
            os.close(root)
        for path in place.work.rglob("*"):
            assert not path.is_symlink() and (path.is_dir() or path.is_file())
            assert path.stat().st_mode & 0o7000 == 0, path


def snapshots(random: Random) -> None:
    """What is packed can be put back, and is the same."""
    with _place(random) as (place, root):
        path = place.work.parent / "archive"
        with path.open("wb") as out:
            archive.pack(root, out.fileno(), 1 << 20)
        before = [(e.path, e.is_folder, e.size, e.mode) for e in files.entries(root, [])]
        data = path.read_bytes()
        archive.check(data, 1 << 20)
        shutil.rmtree(place.work)
        again = files.open_root(str(place.work))
        try:
            archive.unpack(again, data)
            assert [(e.path, e.is_folder, e.size, e.mode) for e in files.entries(again, [])] == before
        finally:
            os.close(again)


TARGETS = [
    Target(name="session-paths", case=paths),
    Target(name="session-archives", case=archives),
    Target(name="session-snapshots", case=snapshots, weight=0.5),
]
