"""How much better an episode was than the others of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from agentgym.rl.config import AdvantageName
from agentgym.types import Group, Outcome

_EPSILON = 1e-6  # below this spread all rewards count as equal


def compute_advantages(rewards_G: Sequence[float], name: AdvantageName) -> list[float]:
    """Advantages of one group's rewards; all 0.0 when the rewards are equal.

    mean_only: r - mean (Dr. GRPO, arXiv:2503.20783, eq. 3). std_normalized: (r - mean) / std over the group
    (GRPO, arXiv:2402.03300, sec. 4.1.2). rloo: r minus the mean of the others (arXiv:2402.14740, eq. 8).
    """
    count = len(rewards_G)
    if count < 2:
        return [0.0] * count
    mean = math.fsum(rewards_G) / count
    centred = [reward - mean for reward in rewards_G]
    std = math.sqrt(math.fsum(value * value for value in centred) / count)
    if std < _EPSILON:
        return [0.0] * count
    if name == "mean_only":
        return centred
    if name == "rloo":
        return [value * count / (count - 1) for value in centred]
    return [value / (std + _EPSILON) for value in centred]


def assign_advantages(group: Group, name: AdvantageName) -> None:
    """Fill `group.advantages`. Episodes that broken infrastructure cost get None and touch no other's."""
    counted = [e for e in group.episodes if e.outcome in (Outcome.SCORED, Outcome.INVALID)]
    rewards = [episode.reward for episode in counted if episode.reward is not None]
    assert len(rewards) == len(counted), "a scored episode has a reward"
    values = iter(compute_advantages(rewards, name))
    group.advantages = [
        next(values) if episode.outcome in (Outcome.SCORED, Outcome.INVALID) else None
        for episode in group.episodes
    ]
