"""The leaderboard's totals over categories, and how much each counts for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.types import Json

TOTALS: Final[Mapping[str, Mapping[str, float | None]]] = {
    "multi_turn": {"base": 1, "miss_func": 1, "miss_param": 1, "long_context": 1},
    "non_live": {"multiple": 3, "parallel": 3, "parallel_multiple": 3,
                 "simple_python": 1, "simple_java": 1, "simple_javascript": 1},
    "live": dict.fromkeys(("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")),
    "hallucination": {"irrelevance": 1, "live_irrelevance": 1},
}  # fmt: skip
"""The shares of the categories in a total; None: the tasks of all of its categories count alike."""


class Totals:
    """sizes: the number of tasks of each category that is played. A total of which one is missing is left out."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._weights: dict[str, dict[str, float]] = {}
        for total, shares in TOTALS.items():
            if shares.keys() <= sizes.keys():
                for category, share in shares.items():
                    weight = float(sizes[category] if share is None else share)
                    self._weights.setdefault(category, {})[total] = weight

    def of(self, category: str, *, success: bool = False) -> dict[str, Json]:
        """What an episode records in `info`; nothing for a category that is in no total."""
        weights = self._weights.get(category)
        return {"measures": dict.fromkeys(weights, success), "weights": dict(weights)} if weights else {}
