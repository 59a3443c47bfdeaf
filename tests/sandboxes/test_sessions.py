"""What a session promises of the Python and the commands it runs, shown for each sandbox that has them."""

from __future__ import annotations

import asyncio
import time

import pytest
from in_session import QUICK, STUBBORN, WALL_S, out, shell, size_past, stopped

from agentgym.sandbox import Limits, RunStatus, Session
from agentgym_sandboxes.agent.turn import GRACE_S

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    assert [(await session.run("x = 1\nraise SystemExit(3)")).exit_code, await out(session, "x")] == [3, "1\n"]
    result = await session.run("exit('over')")
    assert (result.exit_code, result.stderr, result.state_lost) == (1, "over\n", False)
    assert (await session.run("import sys; sys.exit()")).status is RunStatus.OK


async def test_modules_of_the_work_folder_are_imported(session: Session) -> None:
    await session.write("mine.py", b"value = 7\n")
    assert await out(session, "import mine; mine.value") == "7\n"


async def test_pickles_threads_and_processes_work_as_in_any_python(session: Session) -> None:
    assert await out(session, "class C: pass\nimport pickle; type(pickle.loads(pickle.dumps(C()))).__name__") == (
        "'C'\n"
    )
    code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(5)'], check=True).returncode"
    assert await out(session, code) == "5\n0\n"
    assert await out(session, "import os\nif os.fork() == 0:\n    x = 'child'\nelse:\n    os.wait(); x = 1") == ""
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
    result = await stopped(session.run, "x += 1\nprint('begun')\nwhile True:\n    x += 1\n")
    assert (result.status, result.stdout, result.state_lost) == (RunStatus.TIMEOUT, "begun\n", False)
    assert "KeyboardInterrupt" in result.stderr
    assert result.limit is not None and result.limit.resource == "wall_s" and result.limit.allowed in WALL_S
    assert await out(session, "x > 1") == "True\n"


async def test_a_run_that_waits_for_a_command_is_interrupted_too(session: Session) -> None:
    result = await stopped(session.run, "import os\nos.system('echo begun; sleep 60')")
    assert (result.status, result.state_lost) == (RunStatus.TIMEOUT, False)


async def test_a_run_that_will_not_end_is_killed_and_loses_names_but_no_file(session: Session) -> None:
    await out(session, "x = 1\nopen('kept', 'w').write('5');")
    result = await stopped(session.run, STUBBORN)
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
    code = """
import os, threading, time
def end():
    while not os.path.exists('go'):
        time.sleep(0.01)
    os.unlink('go')
    os._exit(1)
threading.Thread(target=end).start()
os.getpid()
"""
    pid = int(await out(session, code))
    await session.write("go", b"")
    async with asyncio.timeout(60):
        while await session.files():
            await asyncio.sleep(0.01)
    await shell(session, f"while kill -0 {pid}; do sleep 0.01; done 2> /dev/null")
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
    forged = await stopped(session.run, f"GUESSING = True{FORGE}{STUBBORN}")
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
    started = await session.exec("(while sleep 0.05; do echo noise; echo x >> ticks; done) & echo started")
    assert ("started" in started.stdout.splitlines(), started.status) == (True, RunStatus.OK)
    await out(session, "1")
    await size_past(session, "ticks", await size_past(session, "ticks", -1))
    await session.reset()
    assert await session.files() == ()


async def test_a_late_command_takes_along_what_it_started_and_nothing_older(session: Session) -> None:
    await session.exec("(while sleep 0.05; do echo x >> old; done) &")
    command = "(echo x >> new; echo begun; while sleep 0.05; do echo x >> new; done) & sleep 60"
    late = await stopped(session.exec, command)
    assert (late.status, late.state_lost) == (RunStatus.TIMEOUT, False)
    new = len(await session.read("new"))
    await size_past(session, "old", 20 + await size_past(session, "old", -1))  # ten times in as many pauses
    assert len(await session.read("new")) == new


async def test_a_killed_run_leaves_commands_and_earlier_processes_alone(session: Session) -> None:
    await out(session, "import subprocess\np = subprocess.Popen('while sleep 0.05; do echo >> t; done', shell=True)")
    assert (await stopped(session.run, STUBBORN)).state_lost
    await size_past(session, "t", await size_past(session, "t", -1))


# Turns


async def test_a_cancelled_call_is_ended_and_the_next_has_its_turn(session: Session) -> None:
    await session.write("f", b"5")
    call = asyncio.create_task(session.run(STUBBORN, limits=Limits(wall_s=60.0)))
    await asyncio.sleep(0.3)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    async with asyncio.timeout(30):
        assert await session.read("f") == b"5"
        assert await out(session, "1") == "1\n"


async def test_a_call_that_is_cancelled_before_its_turn_is_not_made(session: Session) -> None:
    for _ in range(20):
        await out(session, "import signal\nsignal.default_int_handler = signal.SIG_IGN")  # a kill alone ends it
        first = asyncio.create_task(session.run("import time\ntime.sleep(60)", limits=Limits(wall_s=60.0)))
        await asyncio.sleep(0.3)
        first.cancel()
        cancelled_s = time.monotonic()
        second = asyncio.create_task(session.exec("touch made; sleep 30", limits=Limits(wall_s=60.0)))
        await asyncio.sleep(0.3)
        second.cancel()
        in_time = time.monotonic() < cancelled_s + GRACE_S
        await asyncio.gather(first, second, return_exceptions=True)
        if in_time:  # else its turn may have come before we cancelled it
            break
        await session.reset()
    async with asyncio.timeout(30):
        assert "made" not in [file.path for file in await session.files()]


async def test_calls_take_turns(session: Session) -> None:
    await out(session, "seen = []\nimport time")
    await asyncio.gather(*(out(session, f"seen.append({n}); time.sleep(0.05); seen.append({n})") for n in range(4)))
    assert await out(session, "seen") == "[0, 0, 1, 1, 2, 2, 3, 3]\n"
