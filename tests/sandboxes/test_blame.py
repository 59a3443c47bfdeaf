"""Who is to blame: a solution can't pass its failure off as the tests' or the sandbox's."""

from __future__ import annotations

import pytest
from verdicts import errors, judged

from agentgym.errors import InfraError
from agentgym.sandbox import SandboxBackend

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
