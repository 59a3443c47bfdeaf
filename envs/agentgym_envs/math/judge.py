"""Equivalence of two LaTeX expressions by math-verify; runs in a process of its own, which may be killed."""

from __future__ import annotations

import logging
from typing import Any

from agentgym.types import Json


def equivalent(argument: Json) -> bool:
    """argument: [gold, answer, tolerance], LaTeX and a relative tolerance for what both are as numbers."""
    from math_verify import verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # that it sets no alarm is meant so
    assert isinstance(argument, list)
    gold, answer, tolerance = argument
    golds, answers = _parsed(gold), _parsed(answer)
    if not golds or not answers:
        return False
    if verify(golds, answers, timeout_seconds=None):
        return True
    return bool(tolerance) and _near(golds[0], answers[0], float(tolerance))


def _parsed(latex: str) -> list[Any]:
    """The one expression; nothing where it could be read only as text."""
    from math_verify import LatexExtractionConfig, parse

    found: list[Any] = parse(
        f"\\boxed{{{latex}}}",
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
