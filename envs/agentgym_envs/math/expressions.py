"""Whether an answer in LaTeX is the gold one: by its text, as an exact number, or else by math-verify."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

from agentgym.errors import InfraError, UserError, pip_install
from agentgym.killable import CallFailed, KillableCalls
from agentgym_envs.math.answers import plain_number

MAX_CHARS: Final = 200  # of an answer, or four times the gold one's
_OPERATION: Final = re.compile(
    r"[*/^+!]|(?<=[\w)}])\s*-|\\(?:d?frac|tfrac|sqrt|cdot|times|div|pm|d?binom|sum|prod|int|log|ln|sin|cos|tan|pi)(?![a-zA-Z])"
)
_DROPPED: Final = re.compile(
    r"\\(?:left|right|displaystyle|limits)\b|\\[!,;: ]|\\?\$|~|\s+|\^\{?\\circ\}?|\\?%|\\degree"
)
_TEXT: Final = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf)\s*\{([^{}]*)\}")
_SHORT_FRACTION: Final = re.compile(r"\\frac([0-9])([0-9])")


class Judge:
    """Compares answers; what no comparison of texts or numbers decides goes to a killable process.

    tolerance: relative, for numbers. Raises UserError when math-verify is not installed.
    """

    def __init__(self, tolerance: float = 0.0) -> None:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError(f"math: expressions are compared by math-verify: {pip_install('math')}")
        self._tolerance = tolerance
        self._calls = KillableCalls("agentgym_envs.math.judge:equivalent", processes=2)

    async def is_right(self, gold: str, answer: str, question: str = "") -> bool:
        """What the judge cannot finish within its limits is wrong. Raises InfraError when the machine was too slow."""
        decided = by_text(gold, answer, self._tolerance, question)
        if decided is not None:
            return decided
        try:
            return (
                await self._calls([gold, answer.rpartition("=")[2] if "=" not in gold else answer, self._tolerance])
                is True
            )
        except CallFailed as failed:
            if failed.kind == "time_limit":
                raise InfraError(f"math: judging {answer!r:.100} against {gold!r:.100}: {failed}") from failed
            return False

    def close(self) -> None:
        """End its processes; it may be used again."""
        self._calls.close()


def by_text(gold: str, answer: str, tolerance: float = 0.0, question: str = "") -> bool | None:
    """True or False where that needs no algebra, else None.

    A formula of the question is wrong unless it is the gold answer word for word: to factor it, or to reduce it, was
    the task. An answer with more operations than the gold one could need is a calculation that was left to the judge:
    it is wrong. So is every calculation where the gold answer is a number.
    """
    if simplified(gold) == simplified(answer):
        return True
    said = answer.rpartition("=")[2]
    asked = simplified(question)
    if ("=" in answer and simplified(answer) in asked) or (_operations(said) and simplified(said) in asked):
        return False
    right, given = plain_number(gold), plain_number(said)
    if right is not None and given is not None:
        return given.equals(right, tolerance)
    if not said.strip() or len(said) > max(MAX_CHARS, 4 * len(gold)) or "boxed" in said:
        return False
    allowed = 0 if right is not None else 2 * _operations(gold) + 2
    return False if _operations(said) > allowed else None


def simplified(latex: str) -> str:
    """The same for texts that differ in spacing, dollar signs, kinds of fractions and `\\text{}` only."""
    text = _TEXT.sub(lambda match: match[1], latex.strip().rstrip("."))
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _DROPPED.sub("", text)).casefold()


def _operations(latex: str) -> int:
    return len(_OPERATION.findall(latex))
