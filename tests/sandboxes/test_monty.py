"""What is monty's own: code that it can't run is unsupported, never failed."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from pathlib import Path

import psutil
import pytest

from agentgym.sandbox import (
    AssertCase,
    CallCase,
    Case,
    GradeRequest,
    Limits,
    RunStatus,
    SandboxUnavailable,
    StdioCase,
    Verdict,
)
from agentgym_sandboxes.host.wording import Raised
from agentgym_sandboxes.monty.backend import MontyBackend
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.monty.gaps import is_gap, lazy_value, syntax_error
from agentgym_sandboxes.monty.privileges import UID
from agentgym_sandboxes.monty.solution import Solution

pytestmark = pytest.mark.asyncio(loop_scope="session")

NO_LIMITS = Limits()


async def graded(monty: MontyBackend, code: str, *cases: Case, limits: Limits = NO_LIMITS, entry: str = "f") -> Verdict:
    return await monty.grade(GradeRequest(code=code, entry=entry, cases=cases, limits=limits))


GAPS = {
    "yield": "def f(x):\n    yield x\n",
    "inheritance": "class A(list):\n    pass\ndef f(x):\n    return x\n",
    "del": "def f(x):\n    y = [x]\n    del y[0]\n    return x\n",
    "module": "import heapq\ndef f(x):\n    return x\n",
    "module when called": "def f(x):\n    import statistics\n    return x\n",
    "name in module": "def f(x):\n    import sys\n    sys.exit(0)\n",
    "builtin": "def f(x):\n    return bytearray(x)\n",
    "method": "def f(x):\n    return 'abc'.translate({})\n",
    "files": "def f(x):\n    return open('/etc/hostname').read()\n",
    "star import": "from typing import *\ndef f(x):\n    return x\n",
    "dataclass": "import dataclasses\n@dataclasses.dataclass(order=True)\nclass A: x: int\ndef f(x): return x\n",
    "a stream": "import sys\ndef f(x):\n    sys.stdout.write('a')\n    return x\n",
    "a stream replaced": "import sys\ndef f(x):\n    sys.stdout = None\n    return x\n",
    "finalizer": "class A:\n    def __del__(self):\n        pass\ndef f(x):\n    return x\n",
}


async def test_an_ended_solution_is_freed_without_a_collection(monty: MontyBackend) -> None:
    gc.collect()
    gc.disable()
    try:
        verdict = await graded(
            monty, "def f(x):\n    x.append(1)\n    return 1\n", AssertCase(source="assert f([]) == 1")
        )
        assert not any(type(one) is Solution for one in gc.get_objects())
    finally:
        gc.enable()
    assert verdict.status is RunStatus.UNSUPPORTED


@pytest.mark.parametrize("code", GAPS.values(), ids=GAPS.keys())
async def test_what_the_interpreter_lacks_is_unsupported(monty: MontyBackend, code: str) -> None:
    for case in (CallCase(args=(1,), expected=1), AssertCase(source="assert f(1) == 1")):
        verdict = await graded(monty, code, case, case)
        assert verdict.status is RunStatus.UNSUPPORTED
        assert verdict.error.startswith("monty can't run it: ")
        assert [result.passed for result in verdict.results] == [False, False]


async def test_a_gap_in_one_case_makes_the_whole_verdict_unsupported(monty: MontyBackend) -> None:
    code = "def f(x):\n    if x:\n        import heapq\n    return x\n"
    cases = (CallCase(args=(0,), expected=0), CallCase(args=(1,), expected=1))
    assert (await graded(monty, code, *cases)).status is RunStatus.UNSUPPORTED


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("NotImplementedError", "later"),
        ("ModuleNotFoundError", "No module named 'numpy'"),
        ("AttributeError", "'str' object has no attribute 'foo'"),
        ("AttributeError", "'Thing' object has no attribute 'append'"),
        ("NameError", "name 'helper' is not defined"),
        ("ValueError", "No module named 'heapq'"),
    ],
)
async def test_the_codes_own_mistakes_are_no_gaps(kind: str, message: str) -> None:
    assert not is_gap(Raised(kind, message))


CLAIMS = {
    "by its name": "raise NotImplementedError('The monty syntax parser does not yet support that')",
    "by another name": "kind = ModuleNotFoundError\n    raise kind(\"No module named 'heapq'\")",
    "by a key": "{}['Internal error in monty']",
    "by an assertion": "assert False, 'Permission denied: '",
    "by an attribute": "getattr(1, \"No module named 'heapq'\")",
    "by two attributes": "getattr(1, \"a 'module' has no attribute 'x\")",
    "by a class": "class module: pass\n    module().path",
    "by its type": "try: import nothing_such\n    except ImportError as e: raise type(e)(\"No module named 'heapq'\")",
}


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS.keys())
@pytest.mark.parametrize("case", [CallCase(args=(1,), expected=1), AssertCase(source="assert f(1) == 1")])
async def test_a_gap_that_is_only_claimed_is_scored(monty: MontyBackend, claim: str, case: Case) -> None:
    verdict = await graded(monty, f"def f(x):\n    {claim}\n", case)
    assert verdict.status is RunStatus.OK and not verdict.passed
    at_load = await graded(monty, claim.replace("\n    ", "\n") + "\ndef f(x): return x\n", case)
    assert at_load.status is RunStatus.ERROR and not at_load.passed


async def test_a_gap_of_the_parser_is_one_whatever_the_code_raises(monty: MontyBackend) -> None:
    code = "class A:\n    def f(self): raise NotImplementedError\nclass B(A):\n    pass\ndef f(x):\n    return x\n"
    assert (await graded(monty, code, CallCase(args=(1,), expected=1))).status is RunStatus.UNSUPPORTED
    assert (await monty.run(code)).status is RunStatus.UNSUPPORTED


DIFFERENT = {
    "order of a set": "return tuple(set(x) & {5, 4})",
    "order of a set by its name": "found = set(x)\n    for one in found: return one",
    "order of a set that a helper returns": "def g(): return set(x)\n    return list(g())",
    "order of sets in a dict": "import collections\n    return collections.defaultdict(set)",
    "first of equal ones in a set": "return max(set(x), key=x.count)",
    "group and letters": r"import re; return re.sub('(a)', r'\1_', 'a')",
    "expression": "from re import search\n    return search('a$', 'a\\n')",
    "method": "from collections import Counter\n    return max(x, key=Counter(x).get)",
    "a tuple added to a list": "x += (1,)\n    return x",
}


@pytest.mark.parametrize("body", DIFFERENT.values(), ids=DIFFERENT.keys())
async def test_what_would_give_another_result_here_is_unsupported(monty: MontyBackend, body: str) -> None:
    for case in (CallCase(args=([4, 5],), expected=None), AssertCase(source="assert f([4, 5]) is None")):
        assert (await graded(monty, f"def f(x):\n    {body}\n", case)).status is RunStatus.UNSUPPORTED


@pytest.mark.parametrize(
    "body",
    [
        "return sorted(set(x))",
        "seen = set()\n    for one in x:\n        if one in seen: return x\n        seen.add(one)\n    return x",
        "return x if len({*x} - {4}) == 1 and sum(one for one in set(x)) == 9 else 0",
        "y: set[int] = {1}\n    y |= set(x)\n    return x if max(y) == 5 and isinstance(y, set) else 0",
    ],
)
async def test_a_set_whose_order_counts_for_nothing_is_fine(monty: MontyBackend, body: str) -> None:
    assert (await graded(monty, f"def f(x):\n    {body}\n", CallCase(args=([4, 5],), expected=[4, 5]))).passed


@pytest.mark.parametrize("case", [CallCase(args=([{4, 5}],), expected=4), AssertCase(source="assert f([{4, 5}]) == 4")])
async def test_a_set_that_is_passed_is_unsupported(monty: MontyBackend, case: Case) -> None:
    code = "def f(x):\n    return [one for one in x[0]][0]\n"
    assert (await graded(monty, code, case)).status is RunStatus.UNSUPPORTED


async def test_a_list_that_is_added_to_a_tuple_is_the_codes_mistake(monty: MontyBackend) -> None:
    code = "def f(x):\n    n = 0\n    n += 1\n    return x + (n,)\n"
    assert (await graded(monty, code, CallCase(args=([4],), expected=0))).status is RunStatus.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
async def test_under_root_the_processes_have_a_uid_and_a_filter_of_their_own() -> None:
    me = psutil.Process()
    before = set(me.children(recursive=True))
    async with MontyBackend(MontyConfig(workers=1)) as backend:
        assert (await backend.run("print(6 * 7)")).stdout == "42\n"
        [process, *_] = set(me.children(recursive=True)) - before
        status = dict(line.split(":\t", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines())
        assert (process.cwd(), os.getsid(process.pid)) == ("/", process.pid)
    assert (status["Uid"].split(), status["Gid"].split()) == ([str(UID)] * 4, [str(UID)] * 4)
    assert (status["Groups"].strip(), status["NoNewPrivs"], status["Seccomp"]) == ("", "1", "2")
    assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff")} == {0}
    assert not process.is_running()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to give up")
async def test_where_root_can_not_give_up_its_rights_it_has_to_say_yes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "monty"
    broken.write_text("not a program")
    monkeypatch.setenv("MONTY_BIN", str(broken))
    with pytest.raises(SandboxUnavailable, match=r"kept from root's rights: .*sandbox\.options\.allow_root true"):
        await MontyBackend().probe()
    assert (await MontyBackend(MontyConfig(allow_root=True)).probe()).isolated


async def test_a_program_that_needs_more_is_unsupported(monty: MontyBackend) -> None:
    assert (await monty.run("import heapq")).status is RunStatus.UNSUPPORTED
    assert (await monty.run("print(input())", stdin="x")).status is RunStatus.UNSUPPORTED
    assert monty.metrics()["sandbox/calls_unsupported_total"] >= 2


async def test_syntax_is_worded_by_python_and_nothing_is_run() -> None:
    assert syntax_error("def f(:\n") == Raised("SyntaxError", "invalid syntax", 1)
    assert syntax_error("raise SystemExit('ran')") is None
    assert syntax_error("(" * 5000) is not None
    assert syntax_error("x" * 1_000_000) == Raised("SyntaxError", "invalid syntax")


async def test_memory_has_a_limit(monty: MontyBackend) -> None:
    code = "def f():\n    x = []\n    while True:\n        x.append('a' * 100000)\n"
    limits = Limits(memory_mib=32, wall_s=60.0)
    verdict = await graded(monty, code, CallCase(args=(), expected=1), limits=limits)
    assert verdict.results[0].error == "raised MemoryError"


@pytest.mark.parametrize("case", [CallCase(args=(), expected=1), AssertCase(source="assert f() == 1")])
async def test_the_event_loop_is_never_blocked(monty: MontyBackend, case: Case) -> None:
    request = GradeRequest(code="def f():\n    while True: pass\n", entry="f", cases=(case,), limits=Limits(wall_s=0.5))
    grading = asyncio.create_task(monty.grade(request))
    num_turns = 0
    while not grading.done():
        await asyncio.sleep(0.001)
        num_turns += 1
    assert grading.result().status is RunStatus.TIMEOUT
    assert num_turns > 10  # where it is blocked, one or two


async def test_sleeping_takes_no_time(monty: MontyBackend) -> None:
    code = "import time\ndef f():\n    time.sleep(100)\n    return 1\n"
    request = GradeRequest(code=code, entry="f", cases=(CallCase(args=(), expected=1),))
    async with asyncio.timeout(50):
        assert (await monty.grade(request)).passed


@pytest.mark.parametrize(
    "body",
    [
        "return map(str, xs)",
        "return (x for x in xs)",
        "pairs = zip(xs, xs)\n    return list(pairs)",
        "return reversed(xs)[0]",
        "return len(enumerate(xs))",
        "take = filter\n    return list(take(None, xs))",
        "return [zip(xs)]",
    ],
)
async def test_an_iterator_that_would_be_a_list_here_is_unsupported(monty: MontyBackend, body: str) -> None:
    code = f"def f(xs):\n    {body}\n"
    assert lazy_value(code)
    verdict = await graded(monty, code, CallCase(args=([1],), expected=["1"]))
    assert verdict.status is RunStatus.UNSUPPORTED


@pytest.mark.parametrize(
    "body",
    [
        "return list(map(str, xs))",
        "return sum(x for x in xs)",
        "return ''.join(str(x) for x in xs)",
        "for i, x in enumerate(reversed(xs)):\n        pass",
        "return [a for a, b in zip(xs, xs)]",
        "a, b = map(int, xs)",
        "return any(x in map(abs, xs) for x in xs)",
    ],
)
async def test_an_iterator_that_is_read_at_once_is_fine(body: str) -> None:
    assert lazy_value(f"def f(xs):\n    {body}\n") == ""


async def test_a_test_whose_argument_is_changed_is_unsupported_not_failed(monty: MontyBackend) -> None:
    for end in ("", "    raise KeyError('k')\n"):
        test = AssertCase(source="xs = [2, 1]\ntry:\n    f(xs)\nexcept KeyError:\n    pass\nassert xs == [1, 2]")
        verdict = await graded(monty, f"def f(xs):\n    xs.sort()\n{end}", test)
        assert verdict.status is RunStatus.UNSUPPORTED


async def test_a_program_that_hides_its_reading_is_unsupported(monty: MontyBackend) -> None:
    code = "try:\n    n = int(input())\nexcept Exception:\n    n = 0\nprint(n)\n"
    verdict = await graded(monty, code, StdioCase(stdin="5", expected="5"), entry="")
    assert verdict.status is RunStatus.UNSUPPORTED


async def test_a_worker_ended_for_its_memory_is_a_limit_that_was_hit(monty: MontyBackend) -> None:
    """Its session is over then: a later call must not be made in it."""
    cases = tuple(CallCase(args=(number,), expected=0) for number in range(3))
    limits = Limits(memory_mib=256, wall_s=60.0)
    code = "def f(x):\n    return len(('a,' * (20 << 20)).split(','))\n"
    verdict = await graded(monty, code, *cases, limits=limits)
    assert verdict.status is RunStatus.OOM and not verdict.passed
    assert verdict.limit is not None and verdict.limit.resource == "memory_mib"


async def test_bytes_of_a_list_are_a_gap_but_those_of_a_float_a_mistake(monty: MontyBackend) -> None:
    for given, status in (("[1, 2]", RunStatus.UNSUPPORTED), ("3.5", RunStatus.OK)):
        code = f"def f():\n    return bytes({given})\n"
        verdict = await graded(monty, code, CallCase(args=(), expected=b""))
        assert verdict.status is status and not verdict.passed


@pytest.mark.parametrize(
    ("code", "limits", "status", "resource", "allowed"),
    [
        ("while True: pass", Limits(wall_s=0.3), RunStatus.TIMEOUT, "wall_s", 0.3),
        ("x = [0] * (200 << 20)", Limits(memory_mib=64), RunStatus.OOM, "memory_mib", 64),
        (
            "while True: print('x' * 100)",
            Limits(output_bytes=10, wall_s=0.3),
            RunStatus.OUTPUT_LIMIT,
            "output_bytes",
            1280,
        ),
    ],
)
async def test_a_program_that_hits_a_limit_says_which(
    monty: MontyBackend, code: str, limits: Limits, status: RunStatus, resource: str, allowed: float
) -> None:
    result = await monty.run(code, limits=limits)
    assert result.status is status and result.limit is not None
    assert (result.limit.resource, result.limit.allowed) == (resource, allowed)
    assert result.limit.used >= allowed


async def test_a_memory_error_of_the_code_itself_is_no_limit(monty: MontyBackend) -> None:
    own = await monty.run("raise MemoryError('mine')")
    assert (own.status, own.limit) == (RunStatus.ERROR, None)


TOLD = "def f(x):\n    global __tell\n    __tell = lambda *_: {told}\n    return 1\n"


@pytest.mark.parametrize("told", ["5", "None", "('r',)", "(1, 2)", "[]", "('x', 'n', 5)", "1 / 0"])
async def test_a_solution_that_tells_its_answers_in_another_way_has_failed(monty: MontyBackend, told: str) -> None:
    for case in (CallCase(args=(1,), expected=1), AssertCase(source="assert f(1) == 1")):
        request = GradeRequest(code=TOLD.format(told=told), entry="f", cases=(case, case))
        verdict = await monty.grade(request)
        assert verdict.status is not RunStatus.UNSUPPORTED
        assert not verdict.results[1].passed  # the first was asked before


async def test_a_list_that_stands_in_an_answer_again_and_again_takes_no_room(monty: MontyBackend) -> None:
    code = (
        "def f(x):\n    global __tree\n    row = [0] * 1000\n"
        "    if x > 9: __tree = lambda value, depth, odd: value\n    return [row] * x\n"
    )
    cases = tuple(CallCase(args=(x,), expected=[[0] * 1000] * x) for x in (3, 20_000, 3))
    limits = Limits(wall_s=200.0)
    verdict = await graded(monty, code, *cases, limits=limits)
    assert verdict.status is RunStatus.OUTPUT_LIMIT and verdict.limit is not None
    assert verdict.limit.used > verdict.limit.allowed == 32
    assert [result.error for result in verdict.results] == ["", "returned more than a sandbox takes", "not reached"]


@pytest.mark.parametrize(
    "body",
    [
        "return {i * (2 ** 61 - 1) for i in range(x)}",
        "return {i * (2 ** 61 - 1): 0 for i in range(x)}",
        "y = set()\n    for k in range(60): y.add(frozenset(i * (2 ** 61 - 1) + k for i in range(3990)))\n    return y",
    ],
)
async def test_elements_that_collide_cost_us_nothing(monty: MontyBackend, body: str) -> None:
    request = GradeRequest(
        code=f"def f(x):\n    {body}\n",
        entry="f",
        cases=(CallCase(args=(60_000,), expected=1), AssertCase(source="assert f(60_000) == 1")),
        limits=Limits(wall_s=60.0),
    )
    began_s = time.process_time()
    verdict = await monty.grade(request)
    assert verdict.status is RunStatus.TIMEOUT and not any(result.passed for result in verdict.results)
    assert time.process_time() - began_s < 5  # of ours; it was half a minute


async def test_sets_in_sets_are_compared_in_any_order(monty: MontyBackend) -> None:
    code = "def f(x):\n    return {frozenset([x, 1, 'b', 'a', 2.5]), (frozenset(['q', 'p', 3]), 1)}\n"
    expected = {frozenset([9, 1, "a", "b", 2.5]), (frozenset([3, "p", "q"]), 1)}
    cases = (CallCase(args=(9,), expected=expected), CallCase(args=(8,), expected=expected))
    verdict = await graded(monty, code, *cases)
    assert [result.passed for result in verdict.results] == [True, False]


async def test_a_value_that_a_test_has_no_type_for_is_unsupported(monty: MontyBackend) -> None:
    case = AssertCase(source="assert list(f(3)) == [0, 1, 2]")
    request = GradeRequest(code="def f(x):\n    return range(x)\n", entry="f", cases=(case,))
    assert (await monty.grade(request)).status is RunStatus.UNSUPPORTED
