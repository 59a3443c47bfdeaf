"""Calls and programs are graded as a person would, whatever goes in and comes out, and how much of it.

Backends that run all of Python pass everything here; another one may say that it can't run the code.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from fractions import Fraction

import pytest
from verdicts import errors, judged

from agentgym.errors import UserError
from agentgym.sandbox import CallCase, Limits, RunStatus, SandboxBackend, StdioCase

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_arguments_that_were_changed_in_place_are_judged(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        "def f(xs, k=None):\n    xs.sort()\n    return k\n",
        CallCase(args=([3, 1],), expected_args=([1, 3],)),
        CallCase(args=([3, 1],), expected_args=([3, 1],)),
        CallCase(args=([3, 1],), kwargs=(("k", 2),), expected_args=([1, 3],)),
        CallCase(args=([3.0, 1.0],), expected_args=([1.1, 3.0],), tolerance=0.2),
    )
    assert errors(verdict) == ["", "left its arguments ([1, 3],), expected ([3, 1],)", "returned 2, expected None", ""]


async def test_arguments_that_no_longer_cross_are_no_pass(backend: SandboxBackend) -> None:
    code = "def f(xs):\n    xs.append(f)\n"
    verdict = await judged(backend, code, CallCase(args=([],), expected_args=([],)))
    assert errors(verdict) == ["left its arguments <function>, expected ([],)"]


async def test_iterators_are_read_where_a_case_says_so(backend: SandboxBackend) -> None:
    code = "def f(n):\n    for i in range(n):\n        yield i\n"
    verdict = await judged(
        backend,
        code,
        CallCase(args=(3,), expected=[0, 1, 2], as_list=True),
        CallCase(args=(3,), expected=[0, 1], as_list=True),
        CallCase(args=(3,), expected=[0, 1, 2]),
        "assert list(candidate(3)) == [0, 1, 2]",
        "it = candidate(2)\nassert (next(it), next(it), next(it, None)) == (0, 1, None)",
        "assert [x for x, _ in zip(candidate(10 ** 9), range(3))] == [0, 1, 2]",
        "assert candidate(1) == [0]",
    )
    assert errors(verdict) == [
        "",
        "returned [0, 1, 2], expected [0, 1]",
        "returned <generator>, expected [0, 1, 2]",
        "",
        "",
        "",
        "assertion failed: assert candidate(1) == [0]",
    ]


async def test_a_method_is_called_on_a_fresh_instance(backend: SandboxBackend) -> None:
    code = (
        "class Solution:\n"
        "    def __init__(self):\n        self.count = 0\n"
        "    def add(self, x, y=0):\n        self.count += 1\n        return [self.count, x + y]\n"
    )
    calls = [CallCase(args=(1,), kwargs=(("y", x),), expected=[1, 1 + x]) for x in range(3)]
    assert (await judged(backend, code, *calls, entry="Solution.add")).passed
    missing = await judged(backend, code, *calls, entry="Solution.sub")
    assert missing.error == "AttributeError: type object 'Solution' has no attribute 'sub'"
    missing = await judged(backend, code, *calls, entry="Solved.add")
    assert missing.error == "NameError: name 'Solved' is not defined"
    by_test = await judged(
        backend,
        code,
        "assert candidate(1) == [1, 1]\nassert candidate(1) == [1, 1]",
        "s = Solution()\ns.add(1)\nassert s.add(1) == [2, 1]",
        entry="Solution.add",
    )
    assert by_test.passed


PLAIN = [
    None, True, 0, -(2**70), 1.5, float("inf"), float("nan"), -0.0, "ü\n'", b"\x00\xff", [], (), set(),
    frozenset(), {}, [1, (2, {3}, frozenset({"a"}))], {"k": [None, True], (1, 2): {0.5}}, {2: 1, 1: 2}, 1 + 2j,
]  # fmt: skip
LIBRARY = [
    range(1, 9, 3), bytearray(b"\x00x"), Decimal("1.10"), Fraction(2, 4), date(2024, 2, 29),
    datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC, fold=1),
    datetime(2024, 2, 29, tzinfo=timezone(timedelta(hours=2), "here")), timedelta(days=-1, microseconds=3),
    Counter("abca"), OrderedDict([(2, 1), (1, 2)]), defaultdict(list, {1: [2]}), deque([1, [2]], maxlen=4),
    slice(1, None, 2), int, ..., "\ud83d\ude00", [float("inf"), -0.0, {float("nan")}],
]  # fmt: skip


@pytest.mark.parametrize(("value", "plain"), [*((v, True) for v in PLAIN), *((v, False) for v in LIBRARY)], ids=repr)
async def test_values_keep_their_type_both_ways(backend: SandboxBackend, value: object, plain: bool) -> None:
    verdict = await judged(
        backend, "def f(x, *, y):\n    return [x, y]\n",
        CallCase(args=(value,), kwargs=(("y", value),), expected=[value, value]),
        CallCase(args=(value,), kwargs=(("y", 1),), expected=["other", 1]),
        everywhere=plain,
    )  # fmt: skip
    assert [result.passed for result in verdict.results] == [True, False]


@pytest.mark.slow
async def test_arguments_and_results_of_many_megabytes_cross(backend: SandboxBackend) -> None:
    numbers, words, data = list(range(400_000)), "é" * 2_000_000, bytes(range(256)) * 16_000
    verdict = await judged(
        backend, "def f(x): return x\n",
        *[CallCase(args=(value,), expected=value) for value in (numbers, words, data)],
        limits=Limits(wall_s=200.0, cpu_s=200, memory_mib=1024, answer_mib=64),
    )  # fmt: skip
    assert verdict.passed
    verdict = await judged(
        backend,
        "def f(xs):\n    xs.reverse()\n    return xs[:]\n",
        "xs = list(range(200000))\nys = candidate(xs)\nassert xs == ys == list(range(199999, -1, -1))",
        limits=Limits(wall_s=200.0, cpu_s=200, memory_mib=1024, answer_mib=64),
    )
    assert verdict.passed


async def test_a_flood_of_answers_is_told_with_what_was_allowed(backend: SandboxBackend) -> None:
    code, limits = "def f(n): return 'x' * n\n", Limits(wall_s=20.0, answer_mib=1)
    called = [CallCase(args=(n,), expected="x" * n) for n in (5, 2 << 20, 5)]
    tests = ["assert candidate(5) == 'xxxxx'", f"candidate({2 << 20})", "candidate(5)"]
    for cases in (called, tests):
        verdict = await judged(backend, code, *cases, limits=limits)
        if backend.name == "monty":
            return  # nothing crosses a pipe there
        assert verdict.status is RunStatus.OUTPUT_LIMIT
        assert errors(verdict) == ["", "returned more than a sandbox takes", "not reached"]
        assert verdict.limit is not None and verdict.limit.resource == "answer_mib"
        assert verdict.limit.used >= verdict.limit.allowed == 1


async def test_values_that_never_end_are_refused_in_words(backend: SandboxBackend) -> None:
    code = (
        "def f(what):\n"
        "    xs = []\n"
        "    if what == 'self': xs.append(xs)\n"
        "    if what == 'deep':\n"
        "        for _ in range(100000): xs = [xs]\n"
        "    return xs if what != 'big' else 1 << 3000000\n"
    )
    verdict = await judged(backend, code, *[CallCase(args=(x,), expected=1) for x in ("self", "deep", "big")])
    assert errors(verdict) == [
        "returned <list nested more than 50 deep>, expected 1",
        "returned <list nested more than 50 deep>, expected 1",
        "returned <an int of about 3000012 bits>, expected 1",
    ]


async def test_programs_are_judged_by_what_they_print(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        "a, b = input().split()\nprint(int(a) // int(b))\nprint()\n",
        StdioCase(stdin="4 2\n", expected="2"),
        StdioCase(stdin="9 3\n", expected="4\n"),
        StdioCase(stdin="1 0\n", expected="0\n"),
        entry="",
    )
    assert errors(verdict) == [
        "",
        "printed '3', expected '4'",
        "exited with code 1: ZeroDivisionError: division by zero",
    ]
    assert verdict.status is RunStatus.OK


async def test_programs_without_input_are_judged_everywhere(backend: SandboxBackend) -> None:
    verdict = await judged(
        backend,
        "for i in range(30):\n    print(i / 3)\n",
        StdioCase(stdin="", expected="\n".join(f"{i / 3:.6f}" for i in range(30)), tolerance=1e-5),
        StdioCase(stdin="", expected="\n".join(str(i / 3 if i < 20 else 0) for i in range(30))),
        entry="",
    )
    assert errors(verdict) == ["", "printed '6.666666666666667' on line 21, expected '0'"]


async def test_a_program_that_hangs_ends_the_grade(backend: SandboxBackend) -> None:
    cases = [StdioCase(stdin="", expected="1")] * max(40, 4 * (os.cpu_count() or 1))  # more than slots
    verdict = await judged(backend, "print(1)\nwhile True: pass\n", *cases, entry="", limits=Limits(wall_s=0.4))
    told = errors(verdict)
    assert verdict.status is RunStatus.TIMEOUT and verdict.error == "timed out after 0.4 s"
    assert told[0] == "timed out after 0.4 s" and told[-1] == "not reached"
    assert set(told) == {told[0], told[-1]}


async def test_a_program_may_read_and_print_megabytes(backend: SandboxBackend) -> None:
    text = "\n".join(str(i) for i in range(300_000))
    code = "import sys\nsys.stdout.write(sys.stdin.read())\n"
    verdict = await judged(backend, code, StdioCase(stdin=text, expected=text), entry="")
    assert verdict.passed


async def test_programs_and_functions_do_not_mix(backend: SandboxBackend) -> None:
    with pytest.raises(UserError, match="don't mix"):
        await judged(backend, "", StdioCase(stdin="", expected=""), CallCase(args=()))


async def test_grades_of_all_kinds_run_beside_each_other(backend: SandboxBackend) -> None:
    async def one(number: int) -> bool:
        if number % 2:
            program = StdioCase(stdin="", expected=str(number))
            return (await judged(backend, f"print({number})", program, entry="")).passed
        code, call = f"def f(x=1): return x * {number}", CallCase(args=(3,), expected=3 * number)
        return (await judged(backend, code, call, f"assert f() == {number}", everywhere=True)).passed

    assert all(await asyncio.gather(*(one(number) for number in range(32))))


LEFT_OPEN = {
    "a file on descriptor 1": "out = open(1, 'w')\nprint(7, file=out)\n",
    "the same, with a buffer of its own": "import os\nout = os.fdopen(1, 'w', 1 << 16)\nout.write('7')\n",
    "the first stdout": "import io, sys\nout, sys.stdout = sys.stdout, io.StringIO()\nout.write('7')\n",
    "an object that prints at its end": "class Last:\n    def __del__(self):\n        print(7)\nlast = Last()\n",
    "a stdout that needs the program's names to be written": (
        "import os, sys\nclass Out:\n    text = ''\n    def write(self, text): self.text += text\n"
        "    def flush(self): os.write(1, self.text.encode()); self.text = ''\nsys.stdout = Out()\nprint(7)\n"
    ),
    "its own path": "import os\nos.path.abspath(__file__)\nprint(7)\n",
}


@pytest.mark.parametrize("code", LEFT_OPEN.values(), ids=LEFT_OPEN.keys())
async def test_what_a_program_leaves_open_is_written_at_its_end(backend: SandboxBackend, code: str) -> None:
    assert (await judged(backend, code, StdioCase(stdin="", expected="7\n"), entry="")).passed
