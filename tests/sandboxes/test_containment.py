"""Hostile code in Docker: contained, gone after its call, and never believed."""

# ruff: noqa: E501  # hostile programs, one an entry

from __future__ import annotations

import asyncio
import textwrap
import time

import pytest

from agentgym.sandbox import AssertCase, CallCase, GradeRequest, Limits, RunResult, RunStatus
from agentgym_sandboxes.docker.backend import DockerBackend

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="session")]

LIMITS = Limits(wall_s=3.0, cpu_s=3, memory_mib=256)


async def run(docker: DockerBackend, code: str, limits: Limits = LIMITS) -> RunResult:
    return await docker.run(textwrap.dedent(code), limits=limits)


async def assert_works_and_is_clean(docker: DockerBackend) -> None:
    """A later call runs as it should, and finds no process and no file of an earlier one."""
    result = await run(
        docker,
        """
        import os
        mine = os.getuid()
        def uid_of(pid):
            try: return os.stat("/proc/" + pid).st_uid
            except OSError: return 0
        uids = {int(line.split()[1]) for pid in os.listdir("/proc") if pid.isdigit()
                for line in open(f"/proc/{pid}/status") if line.startswith("Uid:")}
        print(sorted(uid for uid in uids if uid > 65000 and uid != mine))
        print([name for folder in ("/tmp", "/work") for name in os.listdir(folder) if name != str(mine)])
        """,
    )
    assert result.status is RunStatus.OK, result
    assert result.stdout == "[]\n[]\n"


async def test_a_fork_bomb_ends_with_its_call(docker: DockerBackend) -> None:
    code = """
        import os
        while True:
            try: os.fork()
            except OSError: pass
    """
    began_s = time.monotonic()
    result = await run(docker, code)
    assert result.status is RunStatus.TIMEOUT
    assert time.monotonic() - began_s < 8
    await assert_works_and_is_clean(docker)


async def test_a_process_left_behind_is_killed(docker: DockerBackend) -> None:
    code = """
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                for number in range(1, 32):
                    try: signal.signal(number, signal.SIG_IGN)
                    except (OSError, ValueError): pass
                os.close(0), os.close(1), os.close(2)
                time.sleep(1000)
            os._exit(0)
        print("left")
    """
    result = await run(docker, code)
    assert (result.status, result.stdout) == (RunStatus.OK, "left\n")
    assert result.wall_s < 2
    await assert_works_and_is_clean(docker)


@pytest.mark.parametrize(
    "code",
    [
        "x = bytearray(1 << 40)",
        "x = []\nwhile True:\n    x.append(bytearray(1 << 20))",
        "x = 'a' * (1 << 33)",
    ],
)
async def test_memory_has_a_limit(docker: DockerBackend, code: str) -> None:
    result = await run(docker, code)
    assert result.status is RunStatus.OOM
    await assert_works_and_is_clean(docker)


async def test_many_processes_can_not_take_more_than_the_container_has(docker: DockerBackend) -> None:
    code = """
        import os, time
        for _ in range(20):
            if os.fork() == 0:
                x = bytearray(200 << 20)
                for i in range(0, len(x), 4096): x[i] = 1
                time.sleep(10)
        time.sleep(10)
    """
    assert (await run(docker, code)).status in (RunStatus.TIMEOUT, RunStatus.OOM)
    await assert_works_and_is_clean(docker)


async def test_cpu_time_has_a_limit_of_its_own(docker: DockerBackend) -> None:
    result = await run(docker, "while True: pass", Limits(wall_s=20.0, cpu_s=1))
    assert result.status is RunStatus.TIMEOUT
    assert result.wall_s < 15


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_a_flood_of_output_is_ended(docker: DockerBackend, stream: str) -> None:
    result = await run(docker, f"import sys\nwhile True: sys.{stream}.write('x' * 65536)")
    assert result.status is RunStatus.OUTPUT_LIMIT
    assert result.truncated and len(result.stdout) <= 65536
    await assert_works_and_is_clean(docker)


async def test_the_disk_has_a_limit(docker: DockerBackend) -> None:
    code = """
        import os
        written = 0
        try:
            for number in range(1000):
                with open(f"/work/{os.getuid()}/{number}", "wb") as file:
                    written += file.write(b"x" * (1 << 20))
        except OSError as error:
            print(error.errno, written >> 20)
    """
    result = await run(docker, code)
    assert result.stdout.startswith("28 ") and int(result.stdout.split()[1]) <= 64
    await assert_works_and_is_clean(docker)


async def test_trees_that_are_hard_to_remove_are_removed(docker: DockerBackend) -> None:
    code = """
        import os
        for folder in (".", "/tmp"):
            os.chdir(folder)
            for depth in range(900):
                os.mkdir("d"); os.chdir("d")
            open("file", "w").close()
            os.symlink("/etc", "link")
            os.mkdir("closed"); open("closed/x", "w").close(); os.chmod("closed", 0)
        print("made")
    """
    result = await run(docker, code)
    assert result.stdout == "made\n", result
    await assert_works_and_is_clean(docker)
    assert docker.metrics()["sandbox/replaced_dirty_total"] == 0


async def test_there_is_no_network(docker: DockerBackend) -> None:
    code = """
        import socket
        for address in (("1.1.1.1", 53), ("8.8.8.8", 53)):
            try: socket.create_connection(address, timeout=1); print("connected")
            except OSError as error: print(type(error).__name__)
        print(open("/proc/net/route").read().count(chr(10)))
        try: socket.socket(40, socket.SOCK_STREAM); print("vsock")
        except OSError as error: print(error.errno)
    """
    result = await run(docker, code)
    assert "connected" not in result.stdout and "vsock" not in result.stdout
    assert result.stdout.splitlines()[-2:] == ["1", "1"]


async def test_rights_are_gone(docker: DockerBackend) -> None:
    code = """
        import os
        status = dict(line.rstrip(chr(10)).split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
        print(status["CapEff"], status["CapPrm"], status["CapBnd"] != "", status["NoNewPrivs"], status["Seccomp"])
        for attempt in (
            lambda: os.setuid(0), lambda: os.setuid(os.getuid() + 1), lambda: os.kill(1, 9), lambda: os.nice(-1),
            lambda: os.kill(os.getppid(), 9), lambda: open("/etc/x", "w"), lambda: open("/proc/1/environ").read(),
            lambda: open("/proc/1/mem", "rb"), lambda: open(f"/proc/{os.getppid()}/fd/3"), lambda: os.chroot("/tmp"),
            lambda: os.listdir("/proc/1/fd"), lambda: open("/proc/sys/kernel/core_pattern", "w"),
        ):
            try: attempt(); print("allowed")
            except OSError: pass
    """
    result = await run(docker, code)
    assert result.stdout.split()[:2] == ["0" * 16, "0" * 16]
    assert result.stdout.split()[3:] == ["1", "2"], result.stdout


async def test_one_call_can_not_reach_another(docker: DockerBackend) -> None:
    """Two calls in one container at a time: neither the other's files, nor memory, nor process."""
    secret = asyncio.create_task(
        run(
            docker,
            """
            import time
            open("secret", "w").write("TOP"); open("/tmp/secret", "w").write("TOP")
            time.sleep(1.5)
            print("alive", open("secret").read())
            """,
        )
    )
    await asyncio.sleep(0.4)
    spy = await run(
        docker,
        """
        import glob, os, signal
        def tries(action):
            try: action(); print("reached")
            except OSError: pass
        homes = [h for h in glob.glob("/work/*") if h != f"/work/{os.getuid()}"]
        print(len(homes))
        for home in homes:
            tries(lambda: os.listdir(home)); tries(lambda: open(home + "/secret")); tries(lambda: os.rename(home, "/tmp/x"))
        tries(lambda: open("/tmp/secret")); tries(lambda: os.unlink("/tmp/secret"))
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            if pid != os.getpid():
                tries(lambda: os.kill(pid, signal.SIGKILL)); tries(lambda: open(f"/proc/{pid}/mem", "rb"))
                tries(lambda: open(f"/proc/{pid}/environ").read()); tries(lambda: os.listdir(f"/proc/{pid}/fd"))
        """,
    )
    assert spy.stdout == "1\n", spy
    assert (await secret).stdout == "alive TOP\n"


FORGERIES = {
    "exit": "import os\nos._exit(0)",
    "exit when called": "def f(x):\n    import os\n    os._exit(0)",
    "SystemExit": "raise SystemExit(0)",
    "SystemExit when called": "def f(x):\n    raise SystemExit(0)",
    "markers": "print('PASSED', 'ok', '6 passed')\ndef f(x):\n    print('[\"pass\"]')\n    return None",
    "equal to all": "class E:\n    def __eq__(self, other): return True\n    __ne__ = lambda s, o: False\ndef f(x): return E()",
    "int equal to all": "class E(int):\n    def __eq__(self, other): return True\n    __hash__ = int.__hash__\ndef f(x): return E(0)",
    "list equal to all": "class E(list):\n    __eq__ = lambda s, o: True\ndef f(x): return E()",
    "builtins": "import builtins\nbuiltins.all = builtins.any = lambda *a: True\nbuiltins.len = lambda x: 1\n"
    "builtins.AssertionError = ValueError\nbuiltins.type = lambda x: int\ndef f(x): return None",
    "codec": "import sys\nv = sys.modules['agent.values']\nv.encode = lambda *a: ['?', True]\ndef f(x): return 1",
    "codec returns objects": "import sys\nsys.modules['agent.values'].encode = lambda *a: {'passed': True}\ndef f(x): return 1",
    "StopIteration": "def f(x):\n    raise StopIteration",
    "GeneratorExit": "def f(x):\n    raise GeneratorExit",
    "KeyboardInterrupt": "def f(x):\n    raise KeyboardInterrupt",
    "own exception": "class E(BaseException):\n    def __str__(self): raise self\ndef f(x): raise E()",
    "verdict on every descriptor": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'[\"ok\"]\\n' + b'[\"pass\"]\\n' * 9)\n"
    "    except OSError: pass\ndef f(x): return None",
    "garbage on every descriptor": "import os\nfor fd in range(3, 64):\n    try: os.write(fd, bytes(range(256)) * 100 + b'\\n')\n"
    "    except OSError: pass\ndef f(x): return None",
    "closed descriptors": "import os\nos.closerange(3, 64)\ndef f(x): return None",
    "frames": "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n        frame.f_locals.update(expected=0, passed=True)\n"
    "        frame = frame.f_back\n    return None",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return None",
    "fork and answer twice": "import os\nos.fork()\ndef f(x): return None",
    "signal itself": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "thread and leave": "import threading, os, time\nthreading.Thread(target=lambda: (time.sleep(0.05), os._exit(0))).start()\n"
    "def f(x):\n    time.sleep(1)",
    "deep json": "import sys, os\ndef f(x):\n    for fd in range(3, 64):\n        try: os.write(fd, b'[' * 100000 + b'\\n')\n"
    "        except OSError: pass",
}  # fmt: skip


@pytest.mark.parametrize("code", FORGERIES.values(), ids=FORGERIES.keys())
async def test_a_verdict_can_not_be_forged(docker: DockerBackend, code: str) -> None:
    calls = tuple(CallCase(args=(x,), expected=[x, "right"]) for x in range(3))
    tests = tuple(AssertCase(source=f"assert candidate({x}) == [{x}, 'right']") for x in range(3))
    for cases in (calls, tests, (*calls, *tests)):
        verdict = await docker.grade(GradeRequest(code=code, entry="f", cases=cases, limits=LIMITS))
        assert len(verdict.results) == len(cases)
        assert not any(result.passed for result in verdict.results), verdict
        assert all(0 < len(result.error) < 300 for result in verdict.results)
    await assert_works_and_is_clean(docker)


async def test_an_exception_of_the_solution_does_not_end_the_tests_own_loop(docker: DockerBackend) -> None:
    """Without the mapping, StopIteration would end `map` early and the test would pass on no item."""
    case = AssertCase(source="found = [x for x in map(candidate, [1, 2])]\nassert found == []")
    code = "def f(x):\n    raise StopIteration\n"
    verdict = await docker.grade(GradeRequest(code=code, entry="f", cases=(case,), limits=LIMITS))
    assert verdict.results[0].error == "raised RuntimeError"


async def test_a_solution_never_sees_what_is_expected(docker: DockerBackend) -> None:
    code = """
        import gc, os
        def f(x):
            found = []
            for path in ["/proc/self/fd/%d" % n for n in range(64)]:
                try:
                    with open(path, "rb") as file: found.append(b"SEC" + b"RET" in file.read(1 << 20))
                except OSError: pass
            with open("/proc/self/maps") as maps: regions = [l.split()[0].split("-") for l in maps if " rw" in l]
            needle = "SEC" + "RET"
            return any(found) or any(needle in o for o in gc.get_objects() if type(o) is str)
    """
    request = GradeRequest(
        code=textwrap.dedent(code),
        entry="f",
        cases=(CallCase(args=(1,), expected="SECRET"), AssertCase(source="assert candidate(1) == 'SECRET'")),
        limits=LIMITS,
    )
    verdict = await docker.grade(request)
    assert verdict.results[0].error == "returned False, expected 'SECRET'"
    assert not verdict.results[1].passed


async def test_files_in_the_working_folder_can_be_used(docker: DockerBackend) -> None:
    code = "def f(x):\n    open('note', 'w').write(str(x))\n    return open('note').read()\n"
    verdict = await docker.grade(
        GradeRequest(code=code, entry="f", cases=(CallCase(args=(5,), expected="5"),))
    )
    assert verdict.passed


async def test_input_exit_codes_threads_and_exit_handlers_work(docker: DockerBackend) -> None:
    code = """
        import atexit, sys, threading, time
        atexit.register(lambda: print("exit"))
        threading.Thread(target=lambda: (time.sleep(0.1), print("thread"))).start()
        print(input())
        sys.exit(7)
    """
    result = await docker.run(textwrap.dedent(code), stdin="hello\n")
    assert (result.exit_code, result.stdout) == (7, "hello\nthread\nexit\n")
    big = "x" * 1_000_000
    echoed = await docker.run("import sys\nprint(len(sys.stdin.read()))", stdin=big)
    assert echoed.stdout == "1000000\n"
