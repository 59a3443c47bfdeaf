"""Rewards of a single response, in the form `(prompt, response, target) -> float`, and of an episode's last reply."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final

from agentgym.rewards import Score
from agentgym.types import Episode

_ANSWER: Final = re.compile(r"<answer>(.*?)</answer>|\\boxed\{([^{}]*)\}", re.DOTALL | re.IGNORECASE)
_NUMBER: Final = re.compile(r"[-+]?(?:\d[\d,]*)(?:\.\d+)?")
_LONGEST: Final = 40  # characters of a number


@dataclass(frozen=True, slots=True, kw_only=True)
class MathReward:
    """1.0 for the target's number in the last `<answer>` tag or `\\boxed{}`, partial_credit where it is elsewhere.

    tolerance: the largest difference that counts as equal. With a partial_credit above 0 a response that lists many
    numbers earns it: keep it small, or 0.
    """

    tolerance: float = 1e-6
    partial_credit: float = 0.1

    def __post_init__(self) -> None:
        if self.tolerance < 0 or not 0 <= self.partial_credit <= 1:
            raise ValueError(
                f"tolerance {self.tolerance} must be at least 0, partial_credit {self.partial_credit} from 0 to 1"
            )

    def __call__(self, prompt: str, response: str, target: str) -> float:
        """Raises ValueError for a target that is not a number."""
        wanted = _number(target)
        if wanted is None:
            raise ValueError(f"the target {target[:_LONGEST]!r} is not a number, so no response can be judged by it")
        answers = [tagged or boxed for tagged, boxed in _ANSWER.findall(response)]
        if answers and self._equal(_number(answers[-1]), wanted):
            return 1.0
        others = (_number(found) for found in _NUMBER.findall(_ANSWER.sub(" ", response)))
        return self.partial_credit if any(self._equal(one, wanted) for one in others) else 0.0

    def _equal(self, given: float | None, wanted: float) -> bool:
        return given is not None and abs(given - wanted) <= self.tolerance


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingReward:
    """full_reward for thoughts between the tags, partial_reward for tags that are empty, alone or in a wrong order."""

    partial_reward: float = 0.2
    full_reward: float = 1.0
    tag: str = "think"

    def __post_init__(self) -> None:
        if not 0 <= self.partial_reward <= self.full_reward <= 1 or not self.tag.strip():
            raise ValueError(
                f"allowed are 0 <= partial_reward <= full_reward <= 1 and a tag; got {self.partial_reward}, "
                f"{self.full_reward}, {self.tag!r}"
            )

    def __call__(self, prompt: str, response: str, target: str | None = None) -> float:
        tag = re.escape(self.tag)
        thoughts = re.findall(rf"<\s*{tag}\s*>(.*?)<\s*/\s*{tag}\s*>", response, re.DOTALL | re.IGNORECASE)
        if any(thought.strip() for thought in thoughts):
            return self.full_reward
        tried = re.search(rf"<\s*/?\s*{tag}\s*>", response, re.IGNORECASE)
        return self.partial_reward if tried else 0.0


def math_reward(episode: Episode) -> Score:
    """`MathReward` of the last reply, against the task's answer; None where that is not a number."""
    target = str(episode.task.answer)
    return None if _number(target) is None else MathReward()("", _last_reply(episode), target)


def thinking_reward(episode: Episode) -> Score:
    """`ThinkingReward` of the last reply."""
    return ThinkingReward()("", _last_reply(episode))


def _last_reply(episode: Episode) -> str:
    said = [message["content"] for message in episode.messages if message["role"] == "assistant"]
    return said[-1] if said else ""


def _number(text: str) -> float | None:
    cleaned = text.strip().strip("$").replace(",", "").replace(" ", "").removesuffix(".")
    try:
        value = float(cleaned) if len(cleaned) <= _LONGEST else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
