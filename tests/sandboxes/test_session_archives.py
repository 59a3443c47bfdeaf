"""Hostile archives and folders: what the check passes can be unpacked, and what was packed can be put back."""

from __future__ import annotations

import os
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ordinary_user import UID, is_root

from agentgym_sandboxes.agent import archive, files
from agentgym_sandboxes.agent.files import Refused

MAX_BYTES = 1 << 20
Change = Callable[[tarfile.TarInfo], None]


def tar(*members: tuple[str, bytes | None], mode: int = 0o644, change: Change | None = None) -> bytes:
    """An archive of files with their contents, and of folders, whose content is None."""
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.mode, info.size = mode, len(content or b"")
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            if change is not None:
                change(info)
            archive.addfile(info, BytesIO(content or b""))
    return buffer.getvalue()


@contextmanager
def as_ordinary_user(folder: Path) -> Iterator[int]:
    """A work folder of a user whom modes bind."""
    work = folder / "own"
    work.mkdir()
    os.chown(work, UID, UID)
    root = os.open(work, os.O_RDONLY)
    os.seteuid(UID)
    try:
        yield root
    finally:
        os.seteuid(0)
        os.close(root)


def test_names_too_long_for_a_file_system_are_refused_before_anything_is_removed() -> None:
    archive.check(tar(("a" * 255, b""), ("ü" * 127, None)), MAX_BYTES)
    for members in ([("a" * 256, b"")], [("ü" * 128, None)], [("b" * 256 + "/f", b"")]):
        with pytest.raises(Refused, match="255 bytes"):
            archive.check(tar(*members), MAX_BYTES)


BAD = {
    "garbage": b"no archive at all" * 100,
    "cut": tar(("f", bytes(5000)))[:2000],
    "too large": tar(("f", bytes(MAX_BYTES + 1))),
    "damaged": tar(("f", b""))[:512] + b"x" + tar(("g", b""))[1:],
    "absolute": tar(("/etc/passwd", b"")),
    "upwards": tar(("a/../../f", b"")),
    "twice": tar(("f", b""), ("./f", b"")),
    "file and folder": tar(("f", b""), ("f/g", b"")),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_what_can_not_be_put_back_is_refused(bad: bytes) -> None:
    with pytest.raises(Refused):
        archive.check(bad, MAX_BYTES)


def test_folders_that_are_only_implied_count() -> None:
    """300 members with 100 folders above each."""
    deep = [(f"{number}/" + "d/" * 98 + "f", b"") for number in range(300)]
    archive.check(tar(*deep[:100]), MAX_BYTES)
    with pytest.raises(Refused, match="20000 members"):
        archive.check(tar(*deep), MAX_BYTES)


def test_what_needs_more_room_than_the_file_system_has_is_refused_before_anything_is_removed() -> None:
    needs = archive.check(tar((".", None), ("a/b/f", b"x" * 5000), ("a/g", b""), ("a", None)), MAX_BYTES)
    assert needs == archive.Needs(num_bytes=8192, num_files=4)
    archive.check_room(needs, block_bytes=4096, num_blocks=3, num_files=6)
    archive.check_room(needs, block_bytes=4096, num_blocks=3, num_files=0)  # it counts none
    for num_blocks, num_files in ((1, 1000), (1000, 5)):
        with pytest.raises(Refused, match="there is room for"):
            archive.check_room(needs, block_bytes=4096, num_blocks=num_blocks, num_files=num_files)


def test_of_a_folder_that_comes_twice_the_last_mode_counts(root: int, work: Path) -> None:
    first, second = tar(("a", None), mode=0o500), tar(("a", None), mode=0o750)
    data = first[:512] + second
    archive.check(data, MAX_BYTES)
    archive.unpack(root, data)
    assert stat.S_IMODE((work / "a").stat().st_mode) == 0o750


@pytest.mark.skipif(not is_root(), reason="root becomes an ordinary user")
def test_a_folder_that_closes_itself_twice_is_put_back(tmp_path: Path) -> None:
    data = tar(("a", None), mode=0o333)[:512] + tar(("a", None), mode=0o222)
    with as_ordinary_user(tmp_path) as root:
        archive.unpack(root, data)
        [entry] = files.entries(root, [])
    assert (entry.path, entry.mode) == ("a", 0o222)


@pytest.mark.skipif(not is_root(), reason="root becomes an ordinary user")
def test_a_folder_that_only_tells_its_names_hides_what_it_holds_and_nothing_else(tmp_path: Path) -> None:
    with as_ordinary_user(tmp_path) as root:
        files.write(root, ["told", "f"], b"")
        files.write(root, ["g"], b"")
        os.chmod("told", 0o444, dir_fd=root)
        assert [entry.path for entry in files.entries(root, [])] == ["g", "told"]
        out = os.memfd_create("packed")
        archive.pack(root, out, MAX_BYTES)
        os.close(out)


def test_a_snapshot_is_never_larger_than_can_be_put_back(root: int, work: Path, tmp_path: Path) -> None:
    """Long names stand in headers of their own."""
    for number in range(400):
        (work / f"{number}{'n' * 150}").write_bytes(bytes(1300))
    with (tmp_path / "packed.tar").open("wb") as out, pytest.raises(Refused, match="a snapshot at most 1 MiB"):
        archive.pack(root, out.fileno(), MAX_BYTES)
    assert (tmp_path / "packed.tar").stat().st_size <= MAX_BYTES


def patched(data: bytes, start: int, field: bytes) -> bytes:
    """The archive with a field of its first header changed, and its sum made right."""
    head = bytearray(data[:512])
    head[start : start + len(field)] = field
    head[148:156] = b" " * 8
    head[148:156] = b"%06o\0 " % sum(head)
    return bytes(head) + data[512:]


def binary(number: int) -> bytes:
    """A size that is too large, or too small, for octal digits."""
    return (number % (1 << 96)).to_bytes(12) if number < 0 else b"\x80" + number.to_bytes(11)


@pytest.mark.parametrize("size", [-1, -512, -1024, -(1 << 60), 1 << 40, 1 << 87])
@pytest.mark.parametrize("kind", [b"0", b"5", b"x", b"g", b"L", b"K", b"S", b"7"])
def test_sizes_that_lie_are_refused_and_lead_nowhere(kind: bytes, size: int) -> None:
    data = patched(patched(tar(("f", b"hello"), ("g", b"more")), 156, kind), 124, binary(size))
    with pytest.raises(Refused):
        archive.check(data, MAX_BYTES)


@pytest.mark.parametrize("size", ["-1", "-512", "-1024", "1e9", "99999999999999999999", "nan", "\u0661"])
def test_sizes_of_extended_headers_that_lie_are_refused(size: str) -> None:
    lying = tar(("f", b"hello"), ("g", b"more"), change=lambda info: info.pax_headers.update(size=size))
    try:
        needs = archive.check(lying, MAX_BYTES)
    except Refused:
        return
    assert needs.num_bytes <= 3 * 4096


@pytest.mark.parametrize(
    "headers",
    [
        {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "9"},
        {"GNU.sparse.map": "0,1,99999999,1", "GNU.sparse.size": "99999999999"},
        {"GNU.sparse.size": "5", "GNU.sparse.numblocks": "0"},
        {"GNU.sparse.realsize": "99999999"},
        {"GNU.sparse.name": "../../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": "a/../../b"},
        {"path": "a\0b"},
        {"path": "\udcff"},
        {"path": "a/" * 200},
    ],
)
def test_extended_headers_lead_nowhere_else(headers: dict[str, str]) -> None:
    with pytest.raises(Refused):
        archive.check(tar(("f", b"hello"), change=lambda info: info.pax_headers.update(headers)), MAX_BYTES)


@pytest.mark.parametrize("kind", [b"1", b"2", b"3", b"4", b"6"])
def test_links_and_devices_are_refused_before_and_behind_files_of_their_name(kind: bytes) -> None:
    evil = patched(tar(("a", b"")), 156, kind)
    for data in (evil[:512] + tar(("a/f", b"x")), tar(("a", b""))[:512] + evil):
        with pytest.raises(Refused):
            archive.check(data, MAX_BYTES)


def test_headers_that_stand_for_headers_are_refused_at_last() -> None:
    """Each tells the name of the next, thousands deep."""
    one = patched(tar(("name", b"x" * 10)), 156, b"L")[:1024]
    with pytest.raises(Refused, match="no tar archive"):
        archive.check(one * 500, MAX_BYTES)


def test_what_was_packed_unpacks_the_same(root: int, work: Path, tmp_path: Path) -> None:
    (work / "a" / "b").mkdir(parents=True)
    (work / "a" / "b" / "f").write_bytes(os.urandom(3000))
    (work / "a" / "b" / "f").chmod(0o640)
    (work / ("n" * 200)).write_bytes(b"")
    (work / "set").write_bytes(b"")
    (work / "set").chmod(0o4755)
    os.utime(work / "set", (5, 5))
    (work / "a").chmod(0o500)
    with (tmp_path / "packed.tar").open("wb") as out:
        archive.pack(root, out.fileno(), MAX_BYTES)
    data = (tmp_path / "packed.tar").read_bytes()
    archive.check(data, MAX_BYTES)
    other = files.open_root(str(tmp_path / "other"))
    archive.unpack(other, data)
    assert [e._replace(mode=e.mode & 0o777) for e in files.entries(root, [])] == files.entries(other, [])
    assert (tmp_path / "other" / "a" / "b" / "f").read_bytes() == (work / "a" / "b" / "f").read_bytes()
    assert stat.S_IMODE((tmp_path / "other" / "set").stat().st_mode) == 0o755
    os.close(other)


def test_an_archive_made_by_tar_is_taken(root: int, work: Path) -> None:
    data = tar((".", None), ("./a", None), ("./a/", None), ("./b/c/f", b"hi"), mode=0o755)
    archive.check(data, MAX_BYTES)
    archive.unpack(root, data)
    assert (work / "b" / "c" / "f").read_bytes() == b"hi" and (work / "a").is_dir()


@given(st.binary(min_size=1, max_size=600), st.integers(0, 5000))
def test_what_the_check_of_an_archive_passes_is_unpacked(data: bytes, at: int) -> None:
    good = tar(("folder/file", b"12345"), ("folder", None), ("other", b"12345"), ("ü" * 80, b"12345"))
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
    data = tar(("f", b""), change=lambda info: info.pax_headers.update(mtime=mtime))
    archive.check(data, MAX_BYTES)
    archive.unpack(root, data)
    assert (work / "f").exists()
