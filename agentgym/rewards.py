"""What the author of a reward writes: a function from a finished episode to a number."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast, get_args, overload

from agentgym.types import Episode

Score: TypeAlias = float | None
Scope: TypeAlias = Literal["episode", "turn", "group"]
RewardFunction: TypeAlias = Callable[[Episode], Score] | Callable[[Episode], Awaitable[Score]] | Callable[..., Any]
"""Scores one finished episode; None means that it cannot be scored, 0.0 that it scored zero.

With the scope `turn` it gives a sequence, one number for each turn of the agent; with the scope `group` it takes the
episodes of a group, and gives one Score for each.

An `async def` runs on the event loop. A plain `def` runs in a process of its own, which is killed when it
takes too long, so it must be importable by name; it sees the episode without its turns' tokens. What raises,
hangs or is not finite makes the episode an infrastructure error that carries the reward's name.
"""
Function = TypeVar("Function", bound=Callable[..., Score | Sequence[Score] | Awaitable[Score | Sequence[Score]]])
UNBOUNDED: Final = sys.float_info.max
_MARK: Final = "__agentgym_reward__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward:
    """A reward function with its name, its default weight, its range, and how long it may take.

    inline: a plain function that runs on the event loop, not in a process. It costs microseconds instead of
    hundreds of them, and all episodes wait while it hangs: only for look-ups that cannot.
    scope: what it scores. The scores of the turns count with their mean, and an advantage may tell them apart. A group
    is scored where one is played, which is in training; such a reward must be inline or `async def`.
    """

    name: str
    function: RewardFunction
    weight: float = 1.0
    low: float = 0.0
    high: float = 1.0
    timeout_s: float = 10.0
    inline: bool = False
    scope: Scope = "episode"

    def __post_init__(self) -> None:
        if self.scope not in get_args(Scope):
            raise ValueError(f"reward {self.name!r} has the scope {self.scope!r}; give one of {get_args(Scope)}")
        if not -math.inf < self.low < self.high < math.inf:
            raise ValueError(
                f"reward {self.name!r} has the range {self.low} to {self.high}; give two finite numbers, low below high"
            )
        if not 0 < self.timeout_s < math.inf:
            raise ValueError(f"reward {self.name!r} has timeout_s {self.timeout_s}; give a finite number above 0")
        if not math.isfinite(self.weight):
            raise ValueError(f"reward {self.name!r} has weight {self.weight}; give a finite number")


@overload
def reward(function: Function, /) -> Function: ...
@overload
def reward(
    *,
    name: str = "",
    weight: float = 1.0,
    low: float = 0.0,
    high: float = 1.0,
    timeout_s: float = 10.0,
    inline: bool = False,
    scope: Scope = "episode",
) -> Callable[[Function], Function]: ...
def reward(
    function: Function | None = None, /, *, name: str = "", **settings: Any
) -> Function | Callable[[Function], Function]:
    """Make a function, or a method of an environment, a reward by its name: `@reward` or `@reward(weight=0.1)`.

    A method counts with its weight unless the environment's `rewards` or the recipe set another; a function
    counts where it is named. Both stay what they are and can be called. The fields are those of `Reward`.
    """

    def mark(function: Function) -> Function:
        plain = cast(RewardFunction, function)  # of a method `marked_rewards` binds it
        setattr(function, _MARK, Reward(name=name or function.__name__, function=plain, **settings))
        return function

    return mark if function is None else mark(function)


def metric(function: Function) -> Function:
    """Record a number beside the rewards: a reward of weight 0 without a range, `reward/NAME_mean` in the metrics."""
    return reward(weight=0.0, low=-UNBOUNDED, high=UNBOUNDED)(function)


def marked_reward(function: object) -> Reward | None:
    """The reward that `@reward` made of a function."""
    mark = getattr(function, _MARK, None)
    return mark if isinstance(mark, Reward) else None


def marked_rewards(holder: object) -> dict[str, Reward]:
    """What `@reward` marked among the attributes of a module, a class or an object, by the rewards' names.

    Their ranges are those of the holder's `reward_ranges`, where it has some.
    """
    found, ranges = {}, getattr(holder, "reward_ranges", {})
    for attribute in dir(holder):
        static = inspect.getattr_static(holder, attribute, None)
        mark = marked_reward(static) or marked_reward(getattr(static, "__func__", None))  # a static method's
        if mark is not None:
            low, high = ranges.get(mark.name, (mark.low, mark.high))
            found[mark.name] = replace(mark, function=getattr(holder, attribute), low=low, high=high)
    return found
