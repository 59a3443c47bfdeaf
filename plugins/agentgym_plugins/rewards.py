"""The plugin `rewards`: scores that are read from what the environment recorded in `episode.info`.

Each is a look-up, so it runs inline. A record of the wrong shape is never an error and never a guess: it is
None, not scored. None also where a sandbox could not judge (`info["unsupported"]`).
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from agentgym.hooks import hookimpl
from agentgym.rewards import Reward, Score
from agentgym.types import Episode, Json
from agentgym_plugins.responses import math_reward, thinking_reward

MAX_NUMBER_CHARS: Final = 80
LONG_REPLY_CHARS: Final = 2000


def success(episode: Episode) -> Score:
    """1.0 when the environment reports that the goal was reached, else 0.0.

    0.0 also when it reports nothing: an environment records success when it sees it.
    """
    if _unjudged(episode) or episode.info.get("success", False) is None:
        return None
    return 1.0 if episode.success else 0.0


def tests_passed(episode: Episode) -> Score:
    """The share of hidden tests that passed, in [0, 1]; None when none was graded."""
    share = episode.info.get("tests_passed")
    if _unjudged(episode) or isinstance(share, bool) or not isinstance(share, (int, float)):
        return None
    return float(share)


def exact_match(episode: Episode) -> Score:
    """1.0 when `info["answer"]` is the task's answer, character by character, ends trimmed.

    No answer scores 0.0; an environment that records no answers, or a task without one, is not scored.
    """
    if "answer" not in episode.info or not _is_plain(episode.task.answer):
        return None
    given = episode.info["answer"]
    return float(_is_plain(given) and str(given).strip() == str(episode.task.answer).strip())


def numeric_match(episode: Episode) -> Score:
    """1.0 when `info["answer"]` is the same number as the task's answer: 0.5, 1/2 and 50% are.

    Compared exactly, without a tolerance. What is not a number scores 0.0; a task whose answer is not a number is
    not scored. Where only one of the two has a percent sign, 50% counts as 50 as well.
    """
    right = _number(episode.task.answer)
    if "answer" not in episode.info or right is None:
        return None
    given = _number(episode.info["answer"])
    if given is None:
        return 0.0
    (value, is_percent), (right_value, right_is_percent) = given, right
    if is_percent == right_is_percent:
        return float(value == right_value)
    whole, share = (value, right_value) if is_percent else (right_value, value)
    return float(whole in (share, share * 100))


def format_ok(episode: Episode) -> Score:
    """1.0 when the environment reports that the reply had the requested form, 0.0 when it had not."""
    said = episode.info.get("format_ok")
    return float(said) if isinstance(said, bool) else None


def length_penalty(episode: Episode) -> Score:
    """How far the agent's replies exceed 2000 characters together, as a share: 0.0 up to there, 1.0 at 4000.

    Give it a negative weight.
    """
    written = sum(len(m["content"]) for m in episode.messages if m["role"] == "assistant")
    return min(1.0, max(0.0, written / LONG_REPLY_CHARS - 1.0))


@hookimpl
def rewards() -> Mapping[str, Reward]:
    functions = {
        "success": success,
        "tests_passed": tests_passed,
        "exact_match": exact_match,
        "numeric_match": numeric_match,
        "format": format_ok,
        "length_penalty": length_penalty,
        "math": math_reward,
        "thinking": thinking_reward,
    }
    return {name: Reward(name=name, function=f, inline=True) for name, f in functions.items()}


def _unjudged(episode: Episode) -> bool:
    return episode.info.get("unsupported") is True


def _is_plain(value: Json) -> bool:
    return isinstance(value, (str, int, float)) and not isinstance(value, bool)


def _number(value: Json) -> tuple[Fraction, bool] | None:
    """An exact number, and whether it has a percent sign; None for what is not a number."""
    text = str(value).strip() if _is_plain(value) else ""
    is_percent = text.endswith("%")
    text = text.removesuffix("%").removeprefix("$").replace(",", "").strip()
    if len(text) > MAX_NUMBER_CHARS or ("e" in text.lower() and not isinstance(value, float)):
        return None  # 1e999999999 would take forever
    try:
        return Fraction(text), is_percent
    except (ValueError, ZeroDivisionError):
        return None
