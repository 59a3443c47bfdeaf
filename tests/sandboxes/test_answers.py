"""What a hostile process wrote in place of answers: read at once, in little room, and never an error of ours."""

from __future__ import annotations

import asyncio
import threading
import time
import tracemalloc
from decimal import Decimal

import pytest

from agentgym.sandbox import CallCase, CaseResult, GradeRequest, Limits, RunResult, RunStatus, StdioCase, Verdict
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host import stdio
from agentgym_sandboxes.host.backend import read_answer
from agentgym_sandboxes.host.grading import verdict_of
from agentgym_sandboxes.host.judging import output_difference

SOON_S = 2.0  # of processor time; what took minutes takes milliseconds


def graded(data: bytes, *cases: CallCase) -> Verdict:
    """The verdict on a solution that was loaded and then wrote this."""
    header = {
        "id": 1, "reason": None, "exits": {"serve": 0}, "truncated": False, "cpu_s": 0.0, "memory_mib": 0.0,
        "wall_s": 0.0, "names": ["answers"],
    }  # fmt: skip
    request = GradeRequest(code="", entry="f", cases=cases or (CallCase(args=(), expected=5),))
    return verdict_of(Frame(header, [b'["ok"]\n' + data]), request)  # type: ignore[arg-type]


def only(data: bytes, expected: object = 5) -> CaseResult:
    [result] = graded(data, CallCase(args=(), expected=expected)).results
    return result


def test_millions_of_lines_are_not_read() -> None:
    began_s = time.thread_time()
    assert only(b'["r",5]\n' + b"\n" * 4_000_000).passed
    assert time.thread_time() - began_s < SOON_S


def test_lines_beyond_the_cases_count_for_nothing() -> None:
    cases = [CallCase(args=(), expected=expected) for expected in (1, 2)]
    found = graded(b'["r",1]\n["r",3]\n["r",2]\n["r",2]\n', *cases)
    assert [result.passed for result in found.results] == [True, False]


@pytest.mark.parametrize("part", [b"[],", b"0.5,"])
def test_a_crowd_that_was_not_expected_is_not_read(part: bytes) -> None:
    data = b'["r",["l",' + part * 500_000 + b"0]]\n"
    tracemalloc.start()
    try:
        assert only(data).error == "returned <value of 500003 parts>, expected 5"
        assert tracemalloc.get_traced_memory()[1] < 4 * len(data)
    finally:
        tracemalloc.stop()
    many = [[number] for number in range(150_000)]
    line = b'["r",["l",' + b",".join(b'["l",%d]' % number for number in range(150_000)) + b"]]\n"
    assert only(line, many).passed


async def test_a_long_answer_is_read_beside_the_loop() -> None:
    """The reader waits for what only the loop does."""
    went_on = threading.Event()
    asyncio.get_running_loop().call_soon(went_on.set)

    def read(frame: Frame) -> Verdict:
        assert went_on.wait(60)
        return Verdict(status=RunStatus.OK, results=())

    assert (await read_answer(Frame({}, [bytes(1 << 20)]), read)).status is RunStatus.OK


def test_a_long_answer_is_the_value_that_was_sent() -> None:
    numbers = [0.1 * number - 7 for number in range(40_000)] + [2**62, -(2**63), 1e300, float("inf")]
    line = values.text(["r", values.encode(numbers)]).encode() + b"\n"
    assert len(line) > 1 << 18 and only(line, numbers).passed
    assert only(b'["r",["l",' + b"1" * 4000 + b"," + b" " * (1 << 18) + b"1]]\n", [1, 1]).error


@pytest.mark.parametrize(
    "words",
    [
        "cannot use " + " (unhashable type: " * 20_000,
        "argument of type " * 20_000,
        "is not in list" * 20_000,
        "division" * 20_000,
    ],
)
@pytest.mark.parametrize("kind", ["TypeError", "ValueError", "ZeroDivisionError", "KeyError"])
def test_an_exceptions_words_are_read_at_once(kind: str, words: str) -> None:
    began_s = time.thread_time()
    assert len(only(f'["x","{kind}","{words}",1]\n'.encode()).error) < 350
    run = RunResult(status=RunStatus.ERROR, exit_code=1, stdout="", stderr=f"{kind}: {words}")
    assert len(stdio._error(StdioCase(stdin="", expected=""), run, Limits())) < 350
    assert time.thread_time() - began_s < SOON_S


def test_a_line_that_looks_like_a_number_is_read_at_once() -> None:
    began_s = time.thread_time()
    assert output_difference("1" * 60_000 + "x", "1.5", 0.1)
    assert output_difference("1." + "1" * 60_000 + "e", "1.5", 0.1)
    assert time.thread_time() - began_s < SOON_S


def test_a_decimal_that_must_not_be_compared_is_a_failed_case() -> None:
    assert only(b'["r",["decimal","sNaN"]]\n', Decimal(1)).error == ("returned Decimal('sNaN'), expected Decimal('1')")
    assert only(b'["r",["l",["decimal","sNaN1"]]]\n', [Decimal("NaN")]).error


@pytest.mark.parametrize("depth", [*range(880, 1000, 7), 9_000, 100_000])
@pytest.mark.parametrize("start", ['["n",', '["r",["i",', '["r",["b",', '["x",', '["r",["d",1,', '["r",1,'])
def test_no_depth_is_an_error_of_ours(start: str, depth: int) -> None:
    line = start + "[" * depth + "]" * (depth + start.count("[")) + "\n"
    expected = {1: {2: 3}} if '"d"' in start else 2**80
    case = CallCase(args=([],), expected=expected, expected_args=([],))
    assert not graded(line.encode(), case).passed
