"""Expressions are compared by what they mean, in processes that may be killed, and a calculation is no answer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from agentgym_envs.math.expressions import Judge, by_text


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    made = Judge()
    yield made
    made.close()


RIGHT = [
    ("x^2+2x+1", "(x+1)^2"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("2\\sqrt{3}", "2 \\sqrt 3"),
    ("\\dfrac{9}{7}", "9/7"),
    ("\\dfrac{9}{7}", "1\\frac27"),
    ("-\\frac{1}{2}", "\\frac{-1}{2}"),
    ("1024", "1{,}024"),
    ("1024", "x = 1024"),
    ("14,\\!400", "x = 14,\\!400"),
    ("90", "90^\\circ"),
    ("5", "5\\text{ inches}"),
    ("50\\%", "50"),
    ("\\text{Sunday}", "Sunday"),
    ("(3, \\frac{\\pi}{2})", "\\left(3,\\,\\dfrac{\\pi}2\\right)"),
    ("[0,\\infty)", "[0, \\infty)"),
    ("6+9i", "9i+6"),
    ("4,6,14,15", "15, 14, 6, 4"),
]
WRONG = [
    ("x^2+2x+1", "x^2+2x"),
    ("2\\sqrt{3}", "2\\sqrt{5}"),
    ("1024", "1023"),
    ("1024", "2^{10}"),  # the question
    ("1024", "1000+24"),
    ("2\\sqrt{3}", "\\sqrt{1+1+1+1+1+1+1+1+1+1+1+1}"),
    ("5", "3 \\text{ or } 5"),
    ("5", "3, 5"),
    ("5", "\\{3, 5\\}"),
    ("2\\sqrt{3}", "2\\sqrt{3}, 2\\sqrt{5}"),
    ("2\\sqrt{3}", "\\boxed{2\\sqrt{3}} \\boxed{2\\sqrt{5}}"),
    ("(3,4)", "(4,3)"),
    ("[0,\\infty)", "(0,\\infty)"),
    ("\\text{Sunday}", "Monday or Sunday"),
    ("x^2", ""),
    ("x^2", "x" * 10_000),
    ("x^2", "\\frac{" * 50),
    ("x^2", "((((((((((((((((((((((((((((((("),
    ("x^2", "\\infty"),
    ("x^2", "nan"),
]


@pytest.mark.parametrize(("gold", "answer"), RIGHT)
async def test_equal_expressions_are_right_however_written(judge: Judge, gold: str, answer: str) -> None:
    assert await judge.is_right(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), WRONG)
async def test_other_expressions_lists_and_calculations_are_wrong(judge: Judge, gold: str, answer: str) -> None:
    assert not await judge.is_right(gold, answer)


@pytest.mark.parametrize(
    ("question", "gold", "echo"),
    [
        ("Factor $32x^3-4x^2+20x$.", "4x(8x^2-x+5)", "32x^3 - 4x^2 + 20x"),
        ("Reduce $\\frac{24}{36}$.", "\\frac{2}{3}", "\\dfrac{24}{36}"),
        ("What is $\\log_28$?", "3", "\\log_28"),
        ("If $f(2)=3$, what is $f(2)$?", "3", "f(2) = 3"),
        ("Simplify $\\sqrt{192}$.", "8\\sqrt{3}", "\\sqrt{192}"),
    ],
)
async def test_a_formula_of_the_question_is_no_answer(judge: Judge, question: str, gold: str, echo: str) -> None:
    assert await judge.is_right(gold, gold, question) and not await judge.is_right(gold, echo, question)
    assert await judge.is_right(gold, echo) is ("log" not in echo)  # elsewhere it would be, but for a calculation
    drawn = f"[asy] draw(({echo}, 0)); [/asy]"
    assert await judge.is_right(gold, echo, drawn) is ("log" not in echo), "a drawing asks for nothing"


@pytest.mark.hostile  # it takes all the CPU time that a judge may take
async def test_a_bomb_is_wrong_and_the_next_answer_is_judged(judge: Judge) -> None:
    assert not await judge.is_right("x^{2^{y}}", "9^{9^{9^{9}}}")
    assert await judge.is_right("x^2+2x+1", "1+2x+x^2")


def test_threads_judge_at_the_same_time(judge: Judge) -> None:
    verdicts: dict[int, bool] = {}

    def work(number: int) -> None:
        verdicts[number] = asyncio.run(judge.is_right(f"{number}x+{number}", f"{number}(x+1)"))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts == dict.fromkeys(range(2, 8), True)


async def test_a_tolerance_is_a_share_of_the_gold_number() -> None:
    judge = Judge(0.01)
    assert by_text("1000", "1009", 0.01) and not by_text("1000", "1011", 0.01)
    assert await judge.is_right("2\\sqrt{3}", "3.46") and not await judge.is_right("2\\sqrt{3}", "3.5")
    judge.close()
