"""The best actions where all transitions are known, as those of Gymnasium's toy text are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

Transitions: TypeAlias = Mapping[int, Mapping[int, Sequence[tuple[float, int, float, bool]]]]
"""For a state and an action: probability, next state, reward, whether that ends the episode."""
DISCOUNT: Final = 0.99
PRECISION: Final = 1e-6
MAX_SWEEPS: Final = 3000


def transitions_of(env: Any) -> Transitions | None:
    found = getattr(env.unwrapped, "P", None)
    return found if isinstance(found, Mapping) else None


def best_actions(transitions: Transitions) -> dict[int, int]:
    """The best action of each state, by value iteration."""
    values = dict.fromkeys(transitions, 0.0)
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for state, actions in transitions.items():
            value = max(_worth(outcomes, values) for outcomes in actions.values())
            change = max(change, abs(value - values[state]))
            values[state] = value
        if change < PRECISION:
            break
    plan = {}
    for state, actions in transitions.items():
        worth = {action: _worth(outcomes, values) for action, outcomes in actions.items()}
        plan[state] = max(worth, key=worth.__getitem__)
    return plan


def _worth(outcomes: Sequence[tuple[float, int, float, bool]], values: Mapping[int, float]) -> float:
    return sum(
        chance * (gain + (0.0 if ends else DISCOUNT * values[int(state)])) for chance, state, gain, ends in outcomes
    )
