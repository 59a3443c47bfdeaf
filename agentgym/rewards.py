"""What the author of a reward plugin writes: a function from an episode to a number."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeAlias

from agentgym.types import Episode

Score: TypeAlias = float | None
RewardFunction: TypeAlias = Callable[[Episode], Score] | Callable[[Episode], Awaitable[Score]]
"""Scores one finished episode; None means that it can't be scored, 0.0 that it scored zero.

An `async def` runs on the event loop. A plain `def` runs in a process of its own, which is killed when it
takes too long, so it must be importable by name; it sees the episode without its turns' tokens. What raises,
hangs or is not finite makes the episode an infrastructure error that carries the reward's name.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward function with its name, the range it keeps to, and how long it may take.

    inline: a plain function that runs on the event loop, not in a process. It costs microseconds instead of
    hundreds of them, and nothing can stop it: only for look-ups that can't hang.
    """

    name: str
    function: RewardFunction
    low: float = 0.0
    high: float = 1.0
    timeout_s: float = 10.0
    inline: bool = False

    def __post_init__(self) -> None:
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                f"reward {self.name!r} has the range {self.low} to {self.high}; "
                "give two finite numbers, low below high"
            )
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(
                f"reward {self.name!r} has timeout_s {self.timeout_s}; give a finite number above 0"
            )
