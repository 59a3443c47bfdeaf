"""What a session promises, shown for each sandbox that has them."""

from __future__ import annotations

import asyncio
import io
import tarfile
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from agentgym.sandbox import FileInfo, FileRefused, Limits, RunStatus, SandboxBackend, Session

pytestmark = pytest.mark.asyncio(loop_scope="session")

SESSION_BACKENDS = [pytest.param("docker", marks=pytest.mark.docker)]
QUICK = Limits(wall_s=0.5)
STUBBORN = """
import time
while True:
    try:
        time.sleep(0.01)
    except KeyboardInterrupt:
        pass
"""


@pytest.fixture(scope="session", params=SESSION_BACKENDS)
def session_backend(request: pytest.FixtureRequest) -> SandboxBackend:
    return request.getfixturevalue(request.param)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def leased(session_backend: SandboxBackend) -> AsyncIterator[Session]:
    async with session_backend.session() as session:
        yield session


@pytest_asyncio.fixture(loop_scope="session")
async def session(leased: Session) -> Session:
    """As new: the same for all tests, reset before each."""
    await leased.reset()
    return leased


async def out(session: Session, code: str, stdin: str = "") -> str:
    """What a run printed, which must end well."""
    result = await session.run(code, stdin=stdin)
    assert (result.status, result.stderr) == (RunStatus.OK, ""), result
    return result.stdout


async def shell(session: Session, command: str) -> str:
    result = await session.exec(command)
    assert result.status is RunStatus.OK, result
    return result.stdout


# The Python


async def test_names_last_and_a_last_expression_shows_its_value(session: Session) -> None:
    assert await out(session, "import math\nx = 5\ndef f(y):\n    return x + y\n") == ""
    assert await out(session, "print('sum'); f(1)") == "sum\n6\n"
    assert await out(session, "_ + 1") == "7\n"
    assert await out(session, "f(1)\nNone") == ""
    assert await out(session, "'text'") == "'text'\n"
    assert await out(session, "for i in range(2): i") == ""
    assert await out(session, "") == ""
    assert await out(session, "# only a comment") == ""
    assert await out(session, "math.floor(2.5)") == "2\n"


async def test_a_traceback_shows_the_lines_of_every_run_it_passed(session: Session) -> None:
    await out(session, "def f():\n    raise ValueError('no')  # in f\n")
    result = await session.run("y = 1\nf()  # the call\n")
    assert (result.status, result.exit_code, result.stdout) == (RunStatus.ERROR, 1, "")
    assert [line for line in result.stderr.splitlines() if line.strip(" ^~")] == [
        "Traceback (most recent call last):",
        '  File "<run 2>", line 2, in <module>',
        "    f()  # the call",
        '  File "<run 1>", line 2, in f',
        "    raise ValueError('no')  # in f",
        "ValueError: no",
    ]
    assert await out(session, "y") == "1\n"


async def test_a_syntax_error_runs_nothing_and_says_where(session: Session) -> None:
    result = await session.run("z = 1\nretrun z\n")
    assert result.status is RunStatus.ERROR
    assert '  File "<run 1>", line 2' in result.stderr and "SyntaxError" in result.stderr
    assert (await session.run("z")).status is RunStatus.ERROR


async def test_each_run_has_standard_input_of_its_own(session: Session) -> None:
    assert await out(session, "input()", stdin="one\ntwo\n") == "'one'\n"
    assert await out(session, "import sys; sys.stdin.read()", stdin="ü\n") == "'ü\\n'\n"
    assert "EOFError" in (await session.run("input()")).stderr


async def test_exit_ends_a_run_with_its_code_and_keeps_the_names(session: Session) -> None:
    assert [(await session.run("x = 1\nraise SystemExit(3)")).exit_code, await out(session, "x")] == [
        3,
        "1\n",
    ]
    result = await session.run("exit('over')")
    assert (result.exit_code, result.stderr, result.state_lost) == (1, "over\n", False)
    assert (await session.run("import sys; sys.exit()")).status is RunStatus.OK


async def test_modules_of_the_work_folder_are_imported(session: Session) -> None:
    await session.write("mine.py", b"value = 7\n")
    assert await out(session, "import mine; mine.value") == "7\n"


async def test_pickles_threads_and_processes_work_as_in_any_python(session: Session) -> None:
    assert await out(
        session, "class C: pass\nimport pickle; type(pickle.loads(pickle.dumps(C()))).__name__"
    ) == ("'C'\n")
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(5)'], check=True).returncode"
    assert await out(session, code) == "5\n0\n"
    assert (
        await out(session, "import os\nif os.fork() == 0:\n    x = 'child'\nelse:\n    os.wait(); x = 1")
        == ""
    )
    assert await out(session, "x") == "1\n"


async def test_streams_that_a_run_replaced_or_closed_are_there_again(session: Session) -> None:
    await session.run("import logging, sys; logging.basicConfig(stream=sys.stdout, format='%(message)s')")
    await session.run("import sys, os; sys.stdout.close(); os.close(2); sys.stdin = sys.displayhook = None")
    assert await out(session, "print(1); 2") == "1\n2\n"


async def test_output_is_cut_and_its_bytes_are_kept_as_written(session: Session) -> None:
    result = await session.run("import os; n = os.write(1, b'\\xff\\x00ok\\n')")
    assert (result.stdout, result.stdout_bytes) == ("\ufffd\x00ok\n", b"\xff\x00ok\n")
    result = await session.run("print('x' * 5000)", limits=Limits(output_bytes=1000))
    assert (result.status, result.truncated, len(result.stdout)) == (RunStatus.OK, True, 1000)


async def test_a_flood_of_output_is_ended(session: Session) -> None:
    await out(session, "x = 1")
    result = await session.run("while True: print('x' * 1000)", limits=Limits(output_bytes=1000))
    assert (result.status, len(result.stdout)) == (RunStatus.OUTPUT_LIMIT, 1000)
    assert result.limit is not None
    assert (result.limit.resource, result.limit.allowed) == ("output_bytes", 128_000)
    assert result.limit.used > 128_000
    assert await out(session, "x") == "1\n"


async def test_an_endless_run_is_interrupted_and_keeps_its_names(session: Session) -> None:
    await out(session, "x = 1")
    began_s = time.monotonic()
    result = await session.run("print('begun')\nwhile True:\n    x += 1\n", limits=QUICK)
    assert time.monotonic() - began_s < 20
    assert (result.status, result.stdout, result.state_lost) == (RunStatus.TIMEOUT, "begun\n", False)
    assert "KeyboardInterrupt" in result.stderr
    assert result.limit is not None and (result.limit.resource, result.limit.allowed) == ("wall_s", 0.5)
    assert await out(session, "x > 1") == "True\n"


async def test_a_run_that_waits_for_a_command_is_interrupted_too(session: Session) -> None:
    result = await session.run("import os\nos.system('sleep 60')", limits=QUICK)
    assert (result.status, result.state_lost) == (RunStatus.TIMEOUT, False)


async def test_a_run_that_will_not_end_is_killed_and_loses_names_but_no_file(session: Session) -> None:
    await out(session, "x = 1\nopen('kept', 'w').write('5');")
    result = await session.run(STUBBORN, limits=QUICK)
    assert (result.status, result.state_lost) == (RunStatus.TIMEOUT, True)
    fresh = await session.run("x")
    assert "NameError" in fresh.stderr and not fresh.state_lost
    assert await out(session, "open('kept').read()") == "'5'\n"


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("import os\nos._exit(3)", 3),
        ("import ctypes\nctypes.string_at(0)", -11),
        ("import os\nos.kill(os.getpid(), 9)", -9),
        ("import os\nos.execv('/bin/sh', ['sh', '-c', 'echo other; exit 4'])", 4),
    ],
)
async def test_a_python_that_ends_is_told_and_replaced(session: Session, code: str, exit_code: int) -> None:
    result = await session.run(f"x = 1\n{code}")
    assert (result.status, result.exit_code, result.state_lost) == (RunStatus.ERROR, exit_code, True)
    assert "NameError" in (await session.run("x")).stderr


async def test_a_python_that_ends_between_runs_is_told_at_the_next(session: Session) -> None:
    await out(session, "import os, threading\nthreading.Timer(0.2, os._exit, [1]).start()")
    await asyncio.sleep(0.6)
    result = await session.run("1 + 1")
    assert (result.status, result.stdout, result.state_lost) == (RunStatus.OK, "2\n", True)


async def test_a_run_that_closes_every_descriptor_costs_the_names_only(session: Session) -> None:
    result = await session.run("import os\nos.closerange(0, 1000)")
    assert (result.status, result.state_lost) == (RunStatus.ERROR, True)
    assert await out(session, "1") == "1\n"


FORGE = """
import json, os, socket, sys
tokens, frame = list(range(100)), sys._getframe()
while frame and GUESSING != True:
    tokens.append(frame.f_locals.get('order', {}).get('token'))
    frame = frame.f_back
for fd in range(3, 64):
    try:
        s = socket.socket(fileno=os.dup(fd))
        for token in tokens:
            s.send(json.dumps({'token': token, 'exit': 0, 'claim': 'memory'}).encode())
    except OSError:
        pass
"""


async def test_an_end_that_is_said_before_it_was_asked_for_is_none(session: Session) -> None:
    forged = await session.run(f"GUESSING = True{FORGE}{STUBBORN}", limits=QUICK)
    assert (forged.status, forged.state_lost) == (RunStatus.TIMEOUT, True)
    assert await out(session, "print('ran')") == "ran\n"


async def test_a_forged_end_is_no_more_than_an_end(session: Session) -> None:
    """Who takes the interpreter over may end his run without ending; then he is killed at the next."""
    forged = await session.run(f"GUESSING = False{FORGE}{STUBBORN}", limits=Limits(wall_s=30.0))
    assert (forged.status, forged.exit_code, forged.limit) == (RunStatus.OK, 0, None)
    late = await session.run("print('ran')", limits=QUICK)
    assert (late.status, late.stdout, late.state_lost) == (RunStatus.TIMEOUT, "", True)
    assert await out(session, "print('ran')") == "ran\n"


# Commands


async def test_a_command_is_a_shell_line_or_a_list(session: Session) -> None:
    assert await shell(session, "echo a | tr a b") == "b\n"
    result = await session.exec(["printf", "%s", "a | b"])
    assert (result.status, result.exit_code, result.stdout) == (RunStatus.OK, 0, "a | b")
    failed = await session.exec("echo no >&2; exit 5")
    assert (failed.status, failed.exit_code, failed.stderr) == (RunStatus.ERROR, 5, "no\n")
    missing = await session.exec(["no-such-command"])
    assert (missing.exit_code, missing.stderr) == (127, "no-such-command: not found\n")
    assert (await session.exec("kill -9 $$")).exit_code == -9


async def test_commands_and_python_share_files_and_not_names(session: Session) -> None:
    await shell(session, "mkdir sub && echo 5 > sub/five")
    assert await out(session, "open('sub/five').read()") == "'5\\n'\n"
    assert (await session.exec("cat five; pwd", folder="sub")).stdout.startswith("5\n")
    assert (await session.exec("cat", stdin="through")).stdout == "through"
    assert (await session.exec("true", folder="..")).exit_code == 126
    assert (await session.exec("true", folder="missing")).exit_code == 126


async def test_home_is_the_work_folder_and_scripts_run_in_it(session: Session) -> None:
    assert await shell(session, 'test "$HOME" = "$(pwd)" && echo same') == "same\n"
    assert await out(session, "import os\nos.path.samefile(os.environ['HOME'], '.')") == "True\n"
    await session.write("script", b"#!/bin/sh\necho ran $1\n")
    assert await shell(session, "chmod +x script && ./script it") == "ran it\n"


async def test_what_a_command_starts_in_the_background_lasts(session: Session) -> None:
    began_s = time.monotonic()
    started = await session.exec("(while sleep 0.05; do echo noise; echo x >> ticks; done) & echo started")
    assert (started.stdout.splitlines()[0], started.status) == ("started", RunStatus.OK)
    assert time.monotonic() - began_s < 20
    await out(session, "1")
    async with asyncio.timeout(10):
        while not await session.files():
            await asyncio.sleep(0.05)
    first = len(await session.read("ticks"))
    await asyncio.sleep(0.5)
    assert len(await session.read("ticks")) > first
    await session.reset()
    assert await session.files() == ()


async def test_a_late_command_takes_along_what_it_started_and_nothing_older(session: Session) -> None:
    await session.exec("(while sleep 0.05; do echo x >> old; done) &")
    late = await session.exec("(while sleep 0.05; do echo x >> new; done) & sleep 60", limits=QUICK)
    assert (late.status, late.state_lost) == (RunStatus.TIMEOUT, False)
    old, new = len(await session.read("old")), len(await session.read("new"))
    await asyncio.sleep(0.5)
    assert len(await session.read("old")) > old
    assert len(await session.read("new")) == new


async def test_a_killed_run_leaves_commands_and_earlier_processes_alone(session: Session) -> None:
    await out(
        session, "import subprocess\np = subprocess.Popen('while sleep 0.05; do echo >> t; done', shell=True)"
    )
    assert (await session.run(STUBBORN, limits=QUICK)).state_lost
    before = len(await session.read("t"))
    await asyncio.sleep(0.5)
    assert len(await session.read("t")) > before


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
    await out(
        session, "import os\nos.close(os.open(b'\\xff', os.O_CREAT)); os.close(os.open('ü\\n', os.O_CREAT))"
    )
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


async def test_a_cancelled_call_is_ended_and_the_next_has_its_turn(session: Session) -> None:
    await session.write("f", b"5")
    call = asyncio.create_task(session.run(STUBBORN, limits=Limits(wall_s=60.0)))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(10):
        assert await session.read("f") == b"5"
        assert await out(session, "1") == "1\n"


async def test_calls_take_turns(session: Session) -> None:
    await out(session, "seen = []\nimport time")
    await asyncio.gather(
        *(out(session, f"seen.append({n}); time.sleep(0.05); seen.append({n})") for n in range(4))
    )
    assert await out(session, "seen") == "[0, 0, 1, 1, 2, 2, 3, 3]\n"


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


def archive(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return buffer.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, size
    return info


BAD = {
    "garbage": b"no archive at all" * 100,
    "cut": archive(member("f", size=5000))[:2000],
    "link": archive(member("l", tarfile.SYMTYPE, "/etc")),
    "hard link": archive(member("f"), member("l", tarfile.LNKTYPE, "f")),
    "device": archive(member("d", tarfile.CHRTYPE)),
    "pipe": archive(member("p", tarfile.FIFOTYPE)),
    "absolute": archive(member("/etc/passwd")),
    "upwards": archive(member("a/../../f")),
    "twice": archive(member("f"), member("./f")),
    "file and folder": archive(member("f"), member("f/g")),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
async def test_a_bad_snapshot_is_refused_and_changes_nothing(session: Session, bad: bytes) -> None:
    await session.write("f", b"5")
    await out(session, "x = 1")
    with pytest.raises(FileRefused, match="snapshot"):
        await session.restore(bad)
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
