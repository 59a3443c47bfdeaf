"""Whether an answer in LaTeX is the gold one: by its text, as an exact number, or else by math-verify."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

from agentgym.errors import InfraError, UserError, pip_install
from agentgym.killable import CallFailed, KillableCalls
from agentgym_envs.math.number import last_side, parse_number, plain_number, with_signs

MAX_CHARS: Final = 200  # of an answer, or four times the gold one's
_OPERATION: Final = re.compile(
    r"[*/^+!]|(?<=[\w)}])\s*-|\\(?:d?frac|tfrac|sqrt|cdot|times|div|pm|d?binom|sum|prod|int|log|ln|sin|cos|tan|pi)(?![a-zA-Z])"
)
_DROPPED: Final = re.compile(r"\\(?:left|right|displaystyle|limits)\b|\\!|\\?\$|\^\{?\\circ\}?|\\?%|\\degree")
_SPACE: Final = re.compile(r"(?:\\[,;: ]|~|\s)+")
_OUTER: Final = re.compile(r"(?<![0-9]) | (?![0-9])")  # between digits a space counts
_TEXT: Final = re.compile(r"\\(?:text|mbox|mathrm|textrm|textbf|mathbf)\s*\{([^{}]*)\}")
_SHORT_FRACTION: Final = re.compile(r"\\frac ?([0-9]) ?([0-9])")
_BASE: Final = re.compile(r"(?<![\w\\])[0-9][0-9A-F]*_\s*\{?\s*([0-9]+)")
_SEPARATOR: Final = re.compile(r"[,;]|\\text\s*\{\s*,?\s*(?:and|or)\s*\}|\b(?:and|or)\b")
_BOTH_SIGNS: Final = re.compile(r"\\pm(?![a-zA-Z])")
_SET: Final = re.compile(r"^\\\{(.*)\\\}$", re.DOTALL)
_PAIR: Final = re.compile(r"(?:\\left\s*)?\(([^()]*?)(?:\\right\s*)?\)", re.DOTALL)
_THOUSANDS_COMMA: Final = re.compile(r"(?<=[0-9]),(?:\\! ?)?(?=[0-9]{3}(?![0-9]))")
_DRAWING: Final = re.compile(r"\[asy\].*?\[/asy\]", re.DOTALL)  # of a question: its numbers are no formula


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
            return await self._calls([gold, as_asked(gold, stated(gold, answer) or ""), self._tolerance]) is True
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
    it is wrong. So is every calculation where the gold answer is a number: such an answer must state one number. A list
    must have as many items as the gold one, and a number the base that the gold one has.
    """
    longest = max(MAX_CHARS, 4 * len(gold))
    if simplified(gold) == simplified(answer):
        return True
    if len(answer) > 4 * longest:
        return False
    said = stated(gold, answer)
    if said is None:
        return False
    asked = simplified(_DRAWING.sub("", question))
    if ("=" in answer and simplified(answer) in asked) or (_operations(said) and simplified(said) in asked):
        return False
    right = plain_number(gold)
    if right is not None and (given := parse_number(said)) is not None:
        return given.equals(right, tolerance)
    if not said.strip() or len(said) > longest or "boxed" in said:
        return False
    if (bases := set(_BASE.findall(said))) and bases != set(_BASE.findall(gold)):
        return False
    if right is not None and "," not in gold:  # with one it may be a list: 100,200
        return False
    if not _lengths(gold) & _lengths(as_asked(gold, said)):
        return False
    allowed = 0 if right is not None else 2 * _operations(gold) + 2
    return False if _operations(said) > allowed else None


def stated(gold: str, answer: str) -> str | None:
    """The answer without names and working before an equals sign; None where a side of an equation is not equal to it.

    `x = 5, y = 6` states the list 5, 6. A gold answer that is an equation asks for an equation.
    """
    answer = with_signs(answer)
    if plain_number(gold) is None:
        answer = answer.partition("\\approx")[0]  # the exact value is before it
    if "=" in gold or "=" not in answer:
        return answer
    sides = [last_side(item) for item in _items(answer, _THOUSANDS_COMMA)]
    return None if None in sides else ", ".join(map(str, sides))


def as_asked(gold: str, said: str) -> str:
    """A bare list or a set where the gold answer is a pair, as that pair: its order counts."""
    inner = _SET.sub(r"\1", said.strip())
    pair = _PAIR.fullmatch(gold.strip())
    return f"({inner})" if pair and len(_items(pair[1])) > 1 and len(_items(inner)) > 1 else said


def _items(text: str, kept: re.Pattern[str] | None = None) -> list[str]:
    """What commas, `and` and `or` separate outside of brackets. kept: commas that do not."""
    if kept is not None:
        text = kept.sub("{,}", text)
    depth = start = 0
    items = []
    for found in re.finditer(rf"(?P<open>\\\{{|[(\[{{])|(?P<close>\\\}}|[)\]}}])|{_SEPARATOR.pattern}", text):
        if found["open"] or found["close"]:
            depth += 1 if found["open"] else -1
        elif depth == 0:
            items.append(text[start : found.start()])
            start = found.end()
    return [item for item in [*items, text[start:]] if item.strip()]


def _lengths(text: str) -> set[int]:
    """How many values a list has; 100,200 may have one or two, and a plus-minus sign makes two."""
    inner = _SET.sub(r"\1", text.strip())
    return {
        sum(1 + bool(_BOTH_SIGNS.search(item)) for item in _items(inner, kept)) for kept in (None, _THOUSANDS_COMMA)
    }


def simplified(latex: str) -> str:
    """The same for texts that differ in spacing, dollar signs, kinds of fractions and `\\text{}` only."""
    text = _TEXT.sub(lambda match: match[1], latex.strip().rstrip("."))
    text = re.sub(r"\\[dt]frac", r"\\frac", text).replace("\\varnothing", "\\emptyset")
    text = _SHORT_FRACTION.sub(r"\\frac{\1}{\2}", _SPACE.sub(" ", _DROPPED.sub("", text)))
    return _OUTER.sub("", text).casefold()


def _operations(latex: str) -> int:
    return len(_OPERATION.findall(latex))
