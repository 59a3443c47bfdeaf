"""What a verifier wrote: the files reward.json and reward.txt, read with bounds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

FILES: Final = ("reward.json", "reward.txt")
MAX_BYTES: Final = 1 << 20
MAX_REWARDS: Final = 1000


class NoReward(ValueError):
    """No valid reward: the message says what is wrong with the file."""


def read_rewards(name: str, data: bytes, *, most: float = math.inf, least: float = -math.inf) -> dict[str, float]:
    """The rewards of a file by name; a reward.txt has one, `reward`. Raises NoReward.

    name: of `FILES`. Every value is finite and within [least, most].
    """
    if len(data) > MAX_BYTES:
        raise NoReward(f"{name} has {len(data)} bytes; at most {MAX_BYTES} are read")
    if not data:
        raise NoReward(f"{name} is empty")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise NoReward(f"{name} is not UTF-8: {error}") from error
    values = _json(text) if name == "reward.json" else {"reward": _number(text)}
    for key, value in values.items():
        if not math.isfinite(value):
            raise NoReward(f"{name}: {key!r} is {value}, which is not finite")
        if not least <= value <= most:
            raise NoReward(f"{name}: {key!r} is {value:g}; allowed is {least:g} to {most:g}")
    return values


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise NoReward(f"reward.txt has {text[:60]!r}, which is not a number") from None


def _json(text: str) -> dict[str, float]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NoReward(f"reward.json is not valid JSON: {str(error)[:200]}") from error
    if not isinstance(found, Mapping) or not found:
        raise NoReward(f"reward.json has {text[:60]!r}; it has to be a table of numbers by name")
    if len(found) > MAX_REWARDS:
        raise NoReward(f"reward.json has {len(found)} rewards; at most {MAX_REWARDS} are read")
    rewards: dict[str, float] = {}
    for key, value in found.items():
        if not isinstance(value, int | float):
            raise NoReward(f"reward.json: {key!r} is {value!r:.60}, which is not a number")
        try:
            rewards[str(key)] = float(value)
        except OverflowError:
            raise NoReward(f"reward.json: {key!r} is too large") from None
    return rewards


def score_of(rewards: Mapping[str, float]) -> float:
    """The one number of a verdict: `reward`, or the mean of all where none has that name."""
    return rewards["reward"] if "reward" in rewards else math.fsum(rewards.values()) / len(rewards)
