"""What the model is told reads the same in every sandbox; and what else ours have in common."""

from __future__ import annotations

import time

import pytest

from agentgym.sandbox import AssertCase, CallCase, Case, GradeRequest, Limits, RunStatus, SandboxBackend, Verdict

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def grade(backend: SandboxBackend, code: str, *cases: Case, prelude: str = "", wall_s: float = 10.0) -> Verdict:
    request = GradeRequest(code=code, entry="f", cases=cases, prelude=prelude, limits=Limits(wall_s=wall_s))
    return await backend.grade(request)


async def hung(backend: SandboxBackend, code: str, *cases: Case) -> tuple[Verdict, float]:
    """The verdict on code that hangs after its first case, and its wall limit: enough to judge that one."""
    for wall_s in (0.5, 5.0, 50.0):
        verdict = await grade(backend, code, *cases, wall_s=wall_s)
        if verdict.results[0].passed:
            break
    return verdict, wall_s


async def error_of(backend: SandboxBackend, body: str, expected: object = 0) -> str:
    """What a case without arguments says of the function with this body."""
    verdict = await grade(backend, f"def f():\n    {body}\n", CallCase(args=(), expected=expected))
    assert verdict.status is RunStatus.OK
    return verdict.results[0].error


@pytest.mark.parametrize(
    ("value", "expected", "error"),
    [
        ("True", 1, "returned True, expected 1"),
        ("1", True, "returned 1, expected True"),
        ("1.0", 1, "returned 1.0, expected 1"),
        ("(1,)", [1], "returned (1,), expected [1]"),
        ("[1, [2, (3, 4)]]", [1, [2, [3, 4]]], "returned [1, [2, (3, 4)]], expected [1, [2, [3, 4]]]"),
        ("{1, 2}", frozenset({1, 2}), "returned {1, 2}, expected frozenset({1, 2})"),
        ("{1: 'a', 'b': None}", {1: "a"}, "returned {1: 'a', 'b': None}, expected {1: 'a'}"),
        ("set()", [], "returned set(), expected []"),
        ("'it\\'s'", "its", "returned \"it's\", expected 'its'"),
        ("None", 0, "returned None, expected 0"),
        ("2 ** 100", 0, "returned 1267650600228229401496703205376, expected 0"),
        ("range(3)", [0, 1, 2], "returned range(0, 3), expected [0, 1, 2]"),
        ("f", 0, "returned <function>, expected 0"),
        ("[1, [f]]", 0, "returned <function>, expected 0"),
        (
            "list(range(100))",
            0,
            "returned [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21..., expected 0",
        ),
    ],
)
async def test_a_wrong_value_reads_the_same_everywhere(
    backend: SandboxBackend, value: str, expected: object, error: str
) -> None:
    assert await error_of(backend, f"return {value}", expected) == error


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return 1 // 0", "raised ZeroDivisionError: division by zero"),
        ("return 1 % 0", "raised ZeroDivisionError: division by zero"),
        ("return 1.0 / 0", "raised ZeroDivisionError: division by zero"),
        ("return {'a': 1}['b']", "raised KeyError: 'b'"),
        ("return {}[1]", "raised KeyError: 1"),
        ("return [][3]", "raised IndexError: list index out of range"),
        ("return [].pop()", "raised IndexError: pop from empty list"),
        ("return max([])", "raised ValueError: max() iterable argument is empty"),
        ("return [1].index(5)", "raised ValueError: list.index(x): x not in list"),
        ("a, b = [1, 2, 3]", "raised ValueError: too many values to unpack (expected 2)"),
        ("a, b = [1]", "raised ValueError: not enough values to unpack (expected 2, got 1)"),
        ("return int('x')", "raised ValueError: invalid literal for int() with base 10: 'x'"),
        ("return 1 + 'a'", "raised TypeError: unsupported operand type(s) for +: 'int' and 'str'"),
        ("return [1] + (2,)", 'raised TypeError: can only concatenate list (not "tuple") to list'),
        ("return {[1]: 2}", "raised TypeError: unhashable type: 'list'"),
        ("return 1 in 5", "raised TypeError: argument of type 'int' is not iterable"),
        ("return len(None)", "raised TypeError: object of type 'NoneType' has no len()"),
        ("return f(1)", "raised TypeError: f() takes 0 positional arguments but 1 was given"),
        ("return f()", "raised RecursionError: maximum recursion depth exceeded"),
        ("return unknown", "raised NameError: name 'unknown' is not defined"),
        (
            "x = x + 1",
            "raised UnboundLocalError: cannot access local variable 'x' where it is not associated with a value",
        ),
        ("return 'a'.foo", "raised AttributeError: 'str' object has no attribute 'foo'"),
        ("raise ValueError", "raised ValueError"),
        ("raise ValueError('two\\nlines')", "raised ValueError: two lines"),
        ("assert 1 == 2, 'no'", "raised AssertionError: no"),
        ("return next(iter([]))", "raised StopIteration"),
        ("raise SystemExit", "raised SystemExit"),
        ("return 'a' * (1 << 40)", "raised MemoryError"),
    ],
)
async def test_an_exception_reads_the_same_everywhere(backend: SandboxBackend, body: str, error: str) -> None:
    assert await error_of(backend, body) == error


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("def f():\n    retrun 1\n", "SyntaxError: invalid syntax (line 2)"),
        ("def f(:\n", "SyntaxError: invalid syntax (line 1)"),
        ("def f():\n    return (1\n", "SyntaxError: '(' was never closed (line 2)"),
        (
            "def f():\nreturn 1\n",
            "IndentationError: expected an indented block after function definition on line 1 (line 2)",
        ),
        ("x = y\ndef f(): return 1\n", "NameError: name 'y' is not defined"),
        ("def g(): return 1\n", "NameError: name 'f' is not defined"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("", "NameError: name 'f' is not defined"),
    ],
)
async def test_a_solution_that_does_not_load_fails_every_case(backend: SandboxBackend, code: str, error: str) -> None:
    verdict = await grade(backend, code, *[CallCase(args=(), expected=1)] * 3)
    assert verdict.status is RunStatus.ERROR
    assert verdict.error == error
    assert [(result.passed, result.error) for result in verdict.results] == [(False, error)] * 3


async def test_an_endless_loop_times_out_and_keeps_what_was_judged(backend: SandboxBackend) -> None:
    code = "def f(x):\n    while x == 1:\n        pass\n    return x\n"
    verdict, wall_s = await hung(backend, code, *[CallCase(args=(x,), expected=x) for x in (0, 1, 2)])
    assert verdict.status is RunStatus.TIMEOUT
    assert verdict.error == f"timed out after {wall_s:g} s"
    assert [result.error for result in verdict.results] == ["", verdict.error, "not reached"]


async def test_an_endless_loop_while_loading_times_out_and_is_told_with_what_was_used(backend: SandboxBackend) -> None:
    began_s = time.monotonic()
    verdict = await grade(backend, "while True:\n    pass\n", CallCase(args=(), expected=1), wall_s=0.5)
    assert verdict.status is RunStatus.TIMEOUT and not verdict.passed
    assert verdict.limit is not None
    assert (verdict.limit.resource, verdict.limit.allowed) == ("wall_s", 0.5)
    assert 0.5 <= verdict.limit.used <= time.monotonic() - began_s


async def test_assert_cases_call_the_solution_by_both_names(backend: SandboxBackend) -> None:
    expects_error = "try:\n    f(-1)\n    ok = False\nexcept ValueError as e:\n    ok = str(e) == 'negative'\nassert ok"
    verdict = await grade(
        backend,
        "def f(a, b=1):\n    if a < 0:\n        raise ValueError('negative')\n    return a + b\n",
        AssertCase(source="assert candidate(1) == 2\nassert f(1, b=5) == 6"),
        AssertCase(source="x = 1\nassert candidate(1) == 3"),
        AssertCase(source="assert f(2) == 4, 'two and one'"),
        AssertCase(source="f(-1)"),
        AssertCase(source=expects_error),
        CallCase(args=(1,), expected=2),
        AssertCase(source="assert f(1) == expected"),
        prelude="expected = 2",
    )  # fmt: skip
    assert [result.error for result in verdict.results] == [
        "", "assertion failed: assert candidate(1) == 3", "assertion failed: two and one",
        "raised ValueError: negative", "", "", "",
    ]  # fmt: skip
    assert verdict.status is RunStatus.OK


async def test_a_hanging_solution_is_told_from_a_failing_test(backend: SandboxBackend) -> None:
    verdict, _ = await hung(
        backend,
        "def f(x):\n    while x: pass\n    return x\n",
        AssertCase(source="assert f(0) == 0"),
        AssertCase(source="try:\n    f(1)\nexcept BaseException:\n    pass"),
        AssertCase(source="pass"),
    )
    assert verdict.status is RunStatus.TIMEOUT
    assert [result.passed for result in verdict.results] == [True, False, False]


async def test_what_a_solution_prints_is_not_its_answer(backend: SandboxBackend) -> None:
    verdict = await grade(
        backend, "print('hello')\ndef f():\n    print(5)\n    return 1\n", CallCase(args=(), expected=1)
    )
    assert verdict.passed


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("while True: pass", RunStatus.TIMEOUT),
        ("import os\nos.kill(os.getpid(), 9)", RunStatus.ERROR),
        ("import os\nos._exit(3)", RunStatus.ERROR),
    ],
    ids=["timed out", "killed", "left at once"],
)
async def test_the_lines_printed_before_an_early_end_are_kept(
    backend: SandboxBackend, end: str, status: RunStatus
) -> None:
    if backend.name == "monty" and "os" in end:
        pytest.skip("monty has no processes to kill")
    for wall_s in (1.0, 10.0, 60.0):  # enough to reach the loop
        result = await backend.run(f"print('first')\nprint('second', 2)\n{end}\n", limits=Limits(wall_s=wall_s))
        if result.stdout or result.status is not RunStatus.TIMEOUT:
            break
    assert (result.status, result.stdout) == (status, "first\nsecond 2\n")


async def test_probe_says_what_is_enforced(backend: SandboxBackend) -> None:
    found = await backend.probe()
    limits = {found.isolated, found.network_off, found.memory_limit, found.process_limit}
    assert limits == {backend.name != "unsafe_subprocess"}


async def test_hashes_are_the_same_in_every_process(backend: SandboxBackend) -> None:
    """Else the order of a set of texts, and with it a verdict, would hang on which sandbox a call met."""
    if not (await backend.probe()).full_python:
        pytest.skip("no hashes of text in this interpreter")
    result = await backend.run("import sys\nprint(sys.flags.hash_randomization, '' in sys.path)")
    assert result.stdout == "0 False\n"
