"""What a session promises of its work folder: files in and out, reset and snapshots, for each sandbox that has them."""

from __future__ import annotations

import io
import tarfile

import pytest
from in_session import QUICK, out, shell

from agentgym.errors import UserError
from agentgym.sandbox import FileInfo, FileRefused, Limits, RunStatus, SandboxBackend, Session

pytestmark = pytest.mark.asyncio(loop_scope="session")


# Files


async def test_files_go_in_and_out(session: Session) -> None:
    data = bytes(range(256)) * 1000
    await session.write("a/b/c.bin", data)
    await session.write("plain", b"")
    assert await session.read("a/b/c.bin") == data
    assert await session.read("./a//b/./c.bin") == data
    home = (await shell(session, "pwd")).strip()
    assert await session.read(f"{home}/plain") == b""
    assert await session.files() == (
        FileInfo(path="a", size=0, is_folder=True),
        FileInfo(path="a/b", size=0, is_folder=True),
        FileInfo(path="a/b/c.bin", size=len(data)),
        FileInfo(path="plain", size=0),
    )
    assert [file.path for file in await session.files("a/b")] == ["a/b/c.bin"]


async def test_a_written_file_replaces_one_and_keeps_its_mode(session: Session) -> None:
    await shell(session, "echo old > f; chmod 755 f")
    await session.write("f", b"#!/bin/sh\necho new\n")
    assert await shell(session, "./f; stat -c %a f; ls -A") == "new\n755\nf\n"


async def test_many_megabytes_go_both_ways(session: Session) -> None:
    data = b"0123456789abcdef" * (1 << 21)
    await session.write("big", data)
    assert await session.read("big", max_bytes=64 << 20) == data


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("missing", "there is no file 'missing' in the work folder"),
        ("folder", "'folder' is a folder; name a file in it"),
        (".", "is a folder"),
        ("link", "'link' is a link, and links are not followed"),
        ("inner", "'inner' is a link"),
        ("linked/passwd", "'linked' is a link"),
        ("file/more", "'file' is a file, no folder"),
        ("pipe", "'pipe' is no regular file"),
        ("socket", "'socket' is no regular file"),
        ("../../etc/passwd", "has a '..'"),
        ("folder/../file", "has a '..'"),
        ("/etc/passwd", "lies outside the work folder"),
        ("/proc/self/mem", "lies outside the work folder"),
        ("nul\0", "NUL byte"),
        ("half \ud800", "is no text"),
        ("x" * 100_000, "File name too long"),
        ("large", "has 2000 bytes; at most 1000 are read"),
        ("closed/file", "forbids this; change it with chmod"),
        ("x" * 300, "File name too long"),
        ("a/" * 200, "more than 100 folders deep"),
    ],
)
async def test_what_is_no_file_of_the_session_is_refused(session: Session, path: str, sentence: str) -> None:
    await shell(
        session,
        "mkdir folder closed; echo 5 > file; ln -s /etc/passwd link; ln -s file inner; ln -s /etc linked; "
        "mkfifo pipe; head -c 2000 /dev/zero > large; echo 5 > closed/file; chmod 000 closed",
    )
    await out(session, "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('socket')")
    with pytest.raises(FileRefused) as refused:
        await session.read(path, max_bytes=1000)
    assert sentence in str(refused.value)
    if "large" not in path and "missing" not in path:
        with pytest.raises(FileRefused):
            await session.write(path, b"new")
    listed = {file.path for file in await session.files()}
    assert listed - {"missing"} == {"closed", "file", "folder", "large"}


async def test_names_that_are_no_text_are_left_out(session: Session) -> None:
    await out(session, "import os\nos.close(os.open(b'\\xff', os.O_CREAT)); os.close(os.open('ü\\n', os.O_CREAT))")
    assert [file.path for file in await session.files()] == ["ü\n"]


async def test_a_session_that_removed_or_replaced_its_folder_gets_it_back(session: Session) -> None:
    await shell(session, 'rmdir "$HOME"')
    await session.write("f", b"5")
    assert await session.read("f") == b"5"
    await shell(session, 'rm -r "$HOME"; ln -s /etc "$HOME"')
    with pytest.raises(FileRefused, match="reset the session"):
        await session.read("passwd")
    await session.reset()
    await session.write("f", b"5")
    assert await out(session, "open('f').read()") == "'5'\n"


async def test_processes_that_kill_all_they_can_reach_hold_up_no_file(session: Session) -> None:
    """They run under the session's uid, and so does everything of its; but not who reads its files."""
    killer = (
        "import os, signal, time\n"
        "if os.fork() == 0:\n"
        "    while True:\n"
        "        try:\n"
        "            os.kill(-1, signal.SIGKILL)\n"
        "        except OSError:\n"
        "            pass\n"
        "time.sleep(60)"
    )
    assert (await session.run(killer, limits=QUICK)).status is not RunStatus.OK
    for number in range(5):
        await session.write("f", b"%d" % number)
        assert await session.read("f") == b"%d" % number
    await session.reset()
    assert await out(session, "1") == "1\n"


# Reset and snapshots


async def test_reset_leaves_no_process_no_name_and_no_file(session: Session) -> None:
    await out(session, "x = 1\nopen('/tmp/left', 'w').write('5');")
    await shell(session, "mkdir -p deep/er; touch deep/er/f .hidden; chmod 000 deep; ln -s /etc link")
    await session.exec("setsid sh -c 'while sleep 0.02; do echo x >> /tmp/ticks; done' &")
    await session.reset()
    assert "NameError" in (await session.run("x")).stderr
    assert await shell(session, "ls -A . /tmp") == ".:\n\n/tmp:\n"
    others = "cat /proc/[0-9]*/status | grep -c ^Uid:.$(id -u)"
    assert int(await shell(session, others)) <= 5  # this Python, and this shell's own


async def test_a_snapshot_brings_back_folders_files_and_modes(session: Session) -> None:
    await shell(
        session,
        "mkdir -p a/empty; echo 5 > a/five; printf '\\0\\377' > bin; chmod 750 bin; chmod 500 a; "
        "ln -s bin link; mkfifo p",
    )
    await session.write("näme\n", b"x" * 100_000)
    snapshot = await session.snapshot()
    with tarfile.open(fileobj=io.BytesIO(snapshot)) as tar:
        assert {(m.uid, m.gid, m.uname, m.gname) for m in tar} == {(0, 0, "", "")}
    await session.run("x = 1")
    await shell(session, "echo other > bin; touch later")
    await session.restore(snapshot)
    assert [file.path for file in await session.files()] == ["a", "a/empty", "a/five", "bin", "näme\n"]
    assert await shell(session, "stat -c %a a bin") == "500\n750\n"
    assert await session.read("bin") == b"\0\xff"
    assert "NameError" in (await session.run("x")).stderr
    assert await session.snapshot() == snapshot


async def test_a_bad_snapshot_is_refused_and_changes_nothing(session: Session) -> None:
    """What is bad about one: test_session_archives.py."""
    bad = io.BytesIO()
    with tarfile.open(fileobj=bad, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("f"))
        tar.addfile(tarfile.TarInfo("f/g"))
    await session.write("f", b"5")
    await out(session, "x = 1")
    with pytest.raises(FileRefused, match="snapshot"):
        await session.restore(bad.getvalue())
    assert await session.read("f") == b"5"
    assert await out(session, "x") == "1\n"


async def test_a_folder_that_is_too_large_for_a_snapshot_is_refused(session: Session) -> None:
    code = "f = open('sparse', 'wb'); f.truncate(65 << 20); f.close()"
    assert (await session.run(code, limits=Limits(file_mib=100))).status is RunStatus.OK
    with pytest.raises(FileRefused, match="a snapshot at most 64"):
        await session.snapshot()


async def test_sessions_are_apart(session: Session, session_backend: SandboxBackend) -> None:
    await session.write("f", b"5")
    await out(session, "x = 1\nopen('/tmp/f', 'w').close()")
    async with session_backend.session() as other:
        assert await other.files() == ()
        assert await shell(other, "ls /tmp") == ""
        assert "NameError" in (await other.run("x")).stderr


async def test_text_is_no_file(session: Session) -> None:
    with pytest.raises(UserError, match=r"write takes bytes, and was given text for 'a'; give text.encode\(\)"):
        await session.write("a", "text")  # type: ignore[arg-type]
    assert await session.files() == ()
