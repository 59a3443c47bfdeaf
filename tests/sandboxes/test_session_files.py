"""The agent's modules for sessions as plain functions: files, archives, claims, processes."""

from __future__ import annotations

import os
import resource
import stat
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_sandboxes.agent import archive, claims, files, processes
from agentgym_sandboxes.agent.files import Refused

MAX_BYTES = 1 << 20


@given(st.lists(st.sampled_from(["a", "..", ".", "", "b.c", "...", "a\nb"]), max_size=6), st.booleans())
def test_no_path_leaves_the_work_folder(names: list[str], absolute: bool) -> None:
    path = ("/work/home/" if absolute else "") + "/".join(names)
    try:
        found = files.components(path, "/work/home")
    except Refused:
        assert ".." in names or path.startswith("/")
        return
    whole = os.path.normpath("/".join(["/work/home", *found]))
    assert whole == "/work/home" or whole.startswith("/work/home/")
    assert "/".join(found) == os.path.normpath("/".join(names) or ".").lstrip("/") or found == []


@pytest.mark.parametrize(
    "path", ["/work/homework", "/work", "/", "/work/home/../x", "\0", "a/../b", "\ud800", "\udcff"]
)
def test_a_path_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(Refused):
        files.components(path, "/work/home")


def test_a_folder_that_becomes_a_link_on_the_way_is_not_followed(root: int, work: Path) -> None:
    """Each component is opened in the one before it, which can't be exchanged any more."""
    (work / "a").mkdir()
    (work / "a" / "f").write_bytes(b"inside")
    inner = files.open_folder(root, ["a"])
    (work / "a").rename(work / "b")
    (work / "a").symlink_to("/etc")
    fd = files.open_file(inner, ["f"])
    assert os.read(fd, 10) == b"inside"
    os.close(fd)
    os.close(inner)
    for act in (
        lambda: files.read(root, ["a", "passwd"], 10),
        lambda: files.write(root, ["a", "new"], b""),
        lambda: files.entries(root, ["a"]),
    ):
        with pytest.raises(Refused, match="is a link"):
            act()


def test_a_write_that_fails_leaves_the_old_file_and_no_draft(root: int, work: Path) -> None:
    files.write(root, ["f"], b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(Refused, match="larger than a file may be"):
            files.write(root, ["f"], b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in work.iterdir()] == ["f"]
    assert (work / "f").read_bytes() == b"old"


def test_refusals_leave_no_descriptor_open(root: int, work: Path) -> None:
    (work / "link").symlink_to("/etc")
    os.mkfifo(work / "pipe")
    (work / "file").write_bytes(b"x" * 100)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for names in (["link", "passwd"], ["pipe"], ["file"], ["missing"], [], ["file", "x"]):
        with pytest.raises(Refused):
            files.read(root, names, 10)
        if names != ["missing"] and names != ["file"]:
            with pytest.raises(Refused):
                files.write(root, names, b"")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_folders_too_deep_to_list_are_refused_and_not_walked_for_ever(root: int, work: Path) -> None:
    folder = os.open(work, os.O_RDONLY)
    for _ in range(files.MAX_DEPTH + 5):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    with pytest.raises(Refused, match="more than 100 folders deep"):
        files.entries(root, [])


def packed(root: int, tmp_path: Path) -> bytes:
    with (tmp_path / "packed.tar").open("wb") as out:
        archive.pack(root, out.fileno(), MAX_BYTES)
    return (tmp_path / "packed.tar").read_bytes()


def test_what_was_packed_unpacks_the_same(root: int, work: Path, tmp_path: Path) -> None:
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "b" / "f").write_bytes(os.urandom(3000))
    (work / "a" / "b" / "f").chmod(0o640)
    (work / ("n" * 200)).write_bytes(b"")
    (work / "set").write_bytes(b"")
    (work / "set").chmod(0o4755)
    os.utime(work / "set", (5, 5))
    (work / "a").chmod(0o500)
    data = packed(root, tmp_path)
    archive.check(data, MAX_BYTES)
    other = files.open_root(str(tmp_path / "other"))
    archive.unpack(other, data)
    assert [e._replace(mode=e.mode & 0o777) for e in files.entries(root, [])] == files.entries(other, [])
    assert (tmp_path / "other" / "a" / "b" / "f").read_bytes() == (work / "a" / "b" / "f").read_bytes()
    assert stat.S_IMODE((tmp_path / "other" / "set").stat().st_mode) == 0o755
    os.close(other)


def test_an_archive_made_by_tar_is_taken(root: int, work: Path) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in (".", "./a", "./a/"):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        info = tarfile.TarInfo("./b/c/f")
        info.size = 2
        tar.addfile(info, BytesIO(b"hi"))
    archive.check(buffer.getvalue(), MAX_BYTES)
    archive.unpack(root, buffer.getvalue())
    assert (work / "b" / "c" / "f").read_bytes() == b"hi" and (work / "a").is_dir()


def test_an_archive_that_says_it_is_larger_than_it_may_be_is_refused() -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo("f")
        info.size = MAX_BYTES + 1
        tar.addfile(info, BytesIO(b"x" * info.size))
    with pytest.raises(Refused, match="more than 1 MiB"):
        archive.check(buffer.getvalue(), MAX_BYTES)


@given(st.binary(min_size=1, max_size=600), st.integers(0, 5000))
def test_what_the_check_of_an_archive_passes_is_unpacked(data: bytes, at: int) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("folder/file", "folder", "other", "ü" * 80):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = 5, 1.5
            if name == "folder":
                info.type, info.size = tarfile.DIRTYPE, 0
            tar.addfile(info, BytesIO(b"12345"))
    good = buffer.getvalue()
    for bad in (data, good[:at] + data + good[at + len(data) :], good[:at] + data + good[at:], good[:at]):
        try:
            archive.check(bad, MAX_BYTES)
        except Refused as error:
            assert len(str(error)) <= files.MAX_TEXT + 3
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = files.open_root(f"{folder}/work")
            archive.unpack(root, bad)
            os.close(root)


@pytest.mark.parametrize("mtime", ["nan", "inf", "-1", "1e300"])
def test_an_archive_with_an_odd_time_is_taken(root: int, work: Path, mtime: str) -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("f")
        info.pax_headers = {"mtime": mtime}
        tar.addfile(info)
    archive.check(buffer.getvalue(), MAX_BYTES)
    archive.unpack(root, buffer.getvalue())
    assert (work / "f").exists()


def test_a_damaged_archive_is_not_taken_for_one_that_ends() -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("first", "second"):
            tar.addfile(tarfile.TarInfo(name))
    damaged = bytearray(buffer.getvalue())
    damaged[512 + 10] ^= 1
    with pytest.raises(Refused, match="damaged or ends too early"):
        archive.check(bytes(damaged), MAX_BYTES)


class Hostile(OSError):
    @property
    def errno(self) -> int:  # type: ignore[override]
        raise ValueError("no")


@pytest.mark.parametrize(
    ("error", "claimed"),
    [
        (MemoryError(), "memory"),
        (OSError(28, "no space"), "disk"),
        (OSError(27, "too large"), "file"),
        (BlockingIOError(11, "fork"), "processes"),
        (RuntimeError("can't start new thread"), "processes"),
        (OSError(2, "missing"), None),
        (ValueError("no"), None),
        (Hostile(), None),
    ],
)
def test_an_exception_speaks_of_its_limit(error: BaseException, claimed: str | None) -> None:
    assert claims.claim(error) == claimed


@pytest.mark.parametrize("notes", [b"", b"\xff", b"[]", b"{}", b'["timeout"]', b"[1]", b"1", b'"memory"', b"[" * 9999])
def test_notes_that_are_no_claim_are_none(notes: bytes) -> None:
    assert claims.claim_in(notes) is None


@pytest.mark.parametrize(
    ("stderr", "claimed"),
    [
        (b"cp: error writing 'f': No space left on device\n", "disk"),
        (b"sh: 1: Cannot fork\n", "processes"),
        (b"bash: fork: retry: Resource temporarily unavailable\n", "processes"),
        (b"Traceback\n...\nMemoryError\n", "memory"),
        (b"No space left on device" + b"x" * 5000, None),
        (b"all is well", None),
    ],
)
def test_what_a_command_said_last_speaks_of_its_limit(stderr: bytes, claimed: str | None) -> None:
    assert claims.claim_in_text(stderr) == claimed


def test_processes_are_told_with_their_parents_and_times() -> None:
    mine = processes.read_process(os.getpid())
    assert mine is not None
    assert mine.parent == os.getppid() and mine.memory_mib > 1
    assert processes.processes_of(os.getuid())[os.getpid()].key == mine.key
    assert processes.processes_of(4_000_000_000) == {}
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert processes.read_process(child) is None  # a zombie
    os.waitpid(child, 0)
