"""`math` with a calculator or a Python: the calculator is exact and bounded, and calls come before answers."""

from __future__ import annotations

import time
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgym.sandbox import LimitHit, Limits, RunResult, RunStatus
from agentgym.testing import play
from agentgym.tools import ToolError
from agentgym.types import Message
from agentgym_envs.math.calculator import CannotCalculate, calculate
from agentgym_envs.math.environment import MathEnvironment
from agentgym_envs.math.solutions import call_message
from agentgym_envs.math.tools import Python

GSM8K = Path(__file__).parent.parent / "data" / "gsm8k_shaped.jsonl"


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("(3 + 4) * 2.5", "17.5"),
        ("0.1 + 0.2", "0.3"),
        ("7/3", "7/3 (2.3333333333)"),
        ("1,234 + 1", "1235"),
        ("$5 × 3", "15"),
        ("2^10 =", "1024"),
        ("-2 ** 2", "-4"),
        ("15% * 80", "12"),
        ("80 * 15%", "12"),
        ("17 % 5", "2"),
        ("3 x 4", "12"),
        ("12 ÷ 5", "2.4"),
        ("sqrt(16/9)", "4/3 (1.3333333333)"),
        ("round(2.5) + floor(1.7) + max(1, 2)", "6"),
        ("round(-2.345, 2)", "-2.35"),
        ("1/8", "0.125"),
        ("-.5", "-0.5"),
        ("2 ** 0.5", "1.4142135624"),
        ("007", "7"),
        ("max(100,200) + min(1, 300,400)", "201"),
        ("1,234 + max(2,345) + (1,000)", "2579"),
        ("sqrt((1,600))", "40"),
        ("round(-2^1000*2^100) + round(2^1000*2^100)", "0"),
        ("2^1000*2^100 / 3^14", "2.839864797e+324"),
        ("2^-1000 / 2^500", "2.851060965e-452"),
    ],
)
def test_it_computes_what_people_write(expression: str, value: str) -> None:
    assert calculate(expression) == value


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("1/0", "division by zero"),
        ("9**9**9", "too large"),
        ("(2**2000)*(2**2000)", "too large"),
        ("1e400", "too large"),
        ("1e300**0.5**-3", "too large"),
        ("(-8) ** 0.5", "negative"),
        ("(-8) ** 0.3", "no real value"),
        ("__import__('os')", "no '__import__'|not an arithmetic"),
        ("().__class__", "not an arithmetic"),
        ("'a' * 10", "not an arithmetic"),
        ("[1, 2]", "not an arithmetic"),
        ("x + 1", "there is no 'x'"),
        ("round(1, 2, 3)", "does not take 3"),
        ("max()", "takes 1 to"),
        ("(" * 250, "not an arithmetic"),
        ("1" * 400, "400 characters"),
        ("", "not an arithmetic"),
        ("1 +", "not an arithmetic"),
        ("True + 1", "not an arithmetic"),
    ],
)
def test_what_it_cannot_compute_is_said_in_a_line(expression: str, reason: str) -> None:
    with pytest.raises(CannotCalculate, match=reason):
        calculate(expression)


@given(st.text(alphabet="0123456789.+-*/()%^, xe$sqrtmax", max_size=120))
def test_no_text_breaks_or_stops_it(text: str) -> None:
    began = time.process_time()
    try:
        calculate(text)
    except CannotCalculate as error:
        assert "\n" not in str(error)
    assert time.process_time() - began < 1


@given(st.integers(-999, 999), st.integers(1, 999), st.integers(-99, 99))
def test_it_is_exact(a: int, b: int, c: int) -> None:
    assert Fraction(calculate(f"({a}) / {b} + {c}").split(" ")[0]) == Fraction(a, b) + c


async def test_the_oracle_calculates_and_then_answers() -> None:
    for environment in (
        MathEnvironment(tools="calculator"),
        MathEnvironment(tools="calculator", source="jsonl", path=str(GSM8K), test_path=str(GSM8K)),
    ):
        for task in islice(environment.tasks("test"), 60):
            episode = await play(environment, task, environment.solve(task))
            assert episode.success and not any(call.error for call in episode.tool_calls), episode
        assert episode.tool_calls or environment is not None


async def test_calls_are_no_tries_and_their_mistakes_are_told() -> None:
    environment = MathEnvironment(tools="calculator")
    task = next(environment.tasks("train"))
    script: list[Message] = [
        call_message("calculate", {"expression": "1/0"}, 1),
        call_message("calculate", {"expression": "1 + 1"}, 2),
        {"role": "assistant", "content": f"#### {task.answer}"},
    ]
    episode = await play(environment, task, script)
    assert episode.success and episode.info["tries"] == 1
    assert [(call.result, call.error) for call in episode.tool_calls] == [
        ("Error: division by zero", "tool"),
        ("2", ""),
    ]


def test_python_asks_for_a_session_and_the_default_for_nothing() -> None:
    spec = next(MathEnvironment(tools="python").tasks("train")).sandbox
    assert spec is not None and spec.session
    assert next(MathEnvironment(tools="calculator").tasks("train")).sandbox is None
    assert MathEnvironment().max_turns == 2 and MathEnvironment.tools is None


class Answering:
    """A session that gives one result to every program."""

    def __init__(self, result: RunResult) -> None:
        self._result = result

    async def run(self, code: str, *, stdin: str = "", limits: Limits = Limits()) -> RunResult:  # noqa: B008
        return self._result


def printed(text: str, status: RunStatus = RunStatus.OK, **more: Any) -> Python:
    result = RunResult(status=status, exit_code=0, stdout=text, stderr="", **more)
    return Python(Answering(result), Limits())  # type: ignore[arg-type]


async def test_python_gives_what_was_printed_and_says_why_it_ended() -> None:
    assert await printed("7\n").python("3 + 4") == "7"
    assert await printed("").python("x = 1") == "(nothing was printed)"
    long = await printed("9" * 5000).python("x")
    assert len(long) < 2100 and long.endswith("[cut: 5000 characters were printed]")
    with pytest.raises(ToolError, match=r"^half\n\[timeout; limit wall_s: 11 of 10; all names are lost\]$"):
        limit = LimitHit(resource="wall_s", used=11, allowed=10)
        await printed("half\n", RunStatus.TIMEOUT, limit=limit, state_lost=True).python("while True: pass")
