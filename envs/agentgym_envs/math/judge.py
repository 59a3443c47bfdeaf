"""Equivalence of two LaTeX expressions by math-verify; runs in a process of its own, which may be killed."""

from __future__ import annotations

import logging
import re
from typing import Any

from agentgym.types import Json

_DECIMAL = re.compile(r"(?<![0-9.])([0-9]*)\.([0-9]+)(?![0-9.])")
DIGITS = 50  # of numbers that are compared; exact zeros have all of them


def equivalent(argument: Json) -> bool:
    """argument: [gold, answer, tolerance], LaTeX and a relative tolerance for what both are as numbers."""
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # that it sets no alarm is meant so
    assert isinstance(argument, list)
    gold, answer, tolerance = argument
    golds, answers = _parsed(gold), _parsed(answer)
    if not golds or not answers:
        return False
    if verify(golds, answers, numeric_precision=DIGITS, allow_set_relation_comp=True, timeout_seconds=None):
        return True
    return bool(tolerance) and _near(golds[0], answers[0], float(tolerance))


def _parsed(latex: str) -> list[Any]:
    """The one expression; nothing where it could be read only as text.

    With fractions in the place of decimals, of which six digits would be compared: 1.414214 is not sqrt(2).
    """
    from math_verify import LatexExtractionConfig, parse

    exact = _DECIMAL.sub(lambda m: f"\\frac{{{m[1]}{m[2]}}}{{1{'0' * len(m[2])}}}", latex)
    found: list[Any] = parse(
        f"\\boxed{{{exact}}}",
        extraction_config=[LatexExtractionConfig(boxed_match_priority=0)],
        parsing_timeout=None,  # no signal: the process is killed instead
    )
    return found


def _near(gold: Any, answer: Any, tolerance: float) -> bool:
    try:
        right, said = complex(gold.evalf()), complex(answer.evalf())
    except (AttributeError, TypeError, ValueError):
        return False
    return abs(right - said) <= tolerance * abs(right)
