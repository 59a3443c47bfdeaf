"""The agent's modules for sessions as plain functions: files, claims, processes; archives: test_session_archives.py."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym_sandboxes.agent import claims, files, processes
from agentgym_sandboxes.agent.files import Refused


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
