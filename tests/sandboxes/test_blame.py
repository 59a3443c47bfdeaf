"""Who is to blame: a solution can't pass its failure off as the tests' or the sandbox's."""

from __future__ import annotations

import asyncio

import pytest
from pool_fakes import until
from verdicts import LIMITS, errors, judged

from agentgym.errors import InfraError
from agentgym.sandbox import CallCase, Limits, RunStatus, SandboxBackend
from agentgym_sandboxes.docker.backend import DockerBackend
from agentgym_sandboxes.docker.config import DockerConfig

pytestmark = pytest.mark.asyncio(loop_scope="session")

SLOW = "found = sum(range(3_000_000))\n"  # the solution is gone before the tests' side says anything


async def test_a_solution_that_is_gone_before_the_tests_begin_has_failed(backend: SandboxBackend) -> None:
    for code in (0, 3):
        verdict = await judged(backend, f"import os\nos._exit({code})\n", "assert f(1) == 2", prelude=SLOW)
        assert errors(verdict) == [f"its process ended with exit code {code} before it returned"]


async def test_what_a_prelude_makes_with_the_solution_is_the_solutions_to_answer_for(backend: SandboxBackend) -> None:
    code = "class Stack:\n    def __init__(self): raise OSError('no')\n"
    verdict = await judged(backend, code, "assert s.pop() == 1", entry="Stack", prelude="s = Stack()\n")
    assert errors(verdict) == ["raised OSError: no"]


async def test_a_prelude_that_asks_only_for_names_fails_by_itself(backend: SandboxBackend) -> None:
    prelude = "import math\ndef half(x):\n    return x / 2\nother = helpers.load(half(2))\n"
    with pytest.raises(InfraError, match="prelude failed: NameError"):
        await judged(backend, "def f(x): return x\n", "assert f(1) == 1", prelude=prelude)


async def test_a_prelude_that_fails_is_to_blame_whatever_the_solution_is(containing: SandboxBackend) -> None:
    with pytest.raises(InfraError, match="prelude failed: ZeroDivisionError"):
        await judged(containing, "def f(:\n", "assert f(1) == 1", prelude="1 / 0")


async def test_names_that_a_test_binds_itself_are_never_asked_of_the_solution(backend: SandboxBackend) -> None:
    code = "def isclose(a, b): return True\ndef check(f): pass\ndef f(x): return 1\n"
    verdict = await judged(
        backend,
        code,
        "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)",
        "from math import isclose\nassert isclose(f(1), 2)",
        "def check(candidate):\n    from math import isclose\n    assert isclose(candidate(1), 2)\ncheck(f)",
    )
    assert not any(result.passed for result in verdict.results)


async def test_a_result_nested_as_deep_as_may_be_is_no_mistake_of_the_test(backend: SandboxBackend) -> None:
    code = "def f(x):\n    for _ in range(50): x = [x]\n    return x\n"
    verdict = await judged(backend, code, "assert f(f(1)) == 1", "assert f(2) == 2")
    assert errors(verdict) == ["raised ValueError: list nested more than 50 deep", "assertion failed: assert f(2) == 2"]


SERVED = """
import os, socket
with open("/tmp/fixture.txt", "w") as file:
    file.write("7")
server = socket.create_server(("127.0.0.1", 8765))
"""
SQUAT = """
import os, socket
os.close(os.open("/tmp/fixture.txt", os.O_CREAT, 0o600))
server = socket.create_server(("127.0.0.1", 8765))
"""


LACKED = "import os\ndef use(): return missing()\nassert not os.path.exists('/tmp/fixture.txt')\n"


@pytest.mark.parametrize("ask", ["", "helper\n", LACKED], ids=["by itself", "a name of the solution's", "one it lacks"])
async def test_a_solution_that_takes_what_the_prelude_opens_is_scored(containing: SandboxBackend, ask: str) -> None:
    verdict = await judged(
        containing, SQUAT + "helper = 1\ndef f(x): return x\n", "assert f(1) == 2", prelude=ask + SERVED
    )
    assert not verdict.passed and not verdict.results[0].passed


async def test_what_preludes_open_is_their_own_however_many_run_at_once(engine: str) -> None:
    async with DockerBackend(DockerConfig(pool_size=1)) as docker:
        test = "assert f(1) == 1 and open('/tmp/fixture.txt').read() == '7'"
        grades = (judged(docker, "def f(x): return x\n", test, prelude=SERVED) for _ in range(8))
        assert [verdict.passed for verdict in await asyncio.gather(*grades)] == [True] * 8


async def test_calls_that_others_left_no_disk_are_made_again_and_not_failed(engine: str) -> None:
    """The calls of a container share its disk; who took less than its part has done nothing wrong."""
    hog = """
import os, time
fd = os.open("f", os.O_CREAT | os.O_WRONLY)
try:
    while os.write(fd, b"x" * (1 << 20)): pass
except OSError:
    time.sleep(600)
"""
    code = "def f(x):\n    with open('g', 'wb') as file:\n        file.write(bytes(x))\n    return x\n"
    small = "with open('g', 'wb') as f:\n    f.write(b'x' * (1 << 20))\nprint('written')\n"
    async with DockerBackend(DockerConfig(pool_size=1, slots=3)) as docker:
        first = asyncio.create_task(docker.run(hog, limits=Limits(file_mib=64, wall_s=600.0)))
        full = "import os\nwhile os.statvfs('.').f_bfree: pass\n"
        assert (await docker.run(full, limits=LIMITS)).status is RunStatus.OK
        grading = asyncio.create_task(judged(docker, code, CallCase(args=(5000,), expected=5000), "assert f(9) == 9"))
        running = asyncio.create_task(docker.run(small, limits=LIMITS))
        await until(lambda: docker.metrics()["sandbox/retries_total"] >= 2)
        first.cancel()
        assert (await grading).passed and (await running).stdout == "written\n"
