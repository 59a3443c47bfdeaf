"""How long requests that begin beside others hold these up, from the engine's own steps."""

from __future__ import annotations

import statistics
from collections import deque

from agentgym.generators.vllm.steps import EngineStep

STEPS = 64  # of either kind: the last ones, from which it is estimated
ENOUGH = 16  # of either kind, for an estimate
OUTLIER = 4.0  # medians: what takes longer stood still for something else, new weights for example
UNKNOWN = 0.5  # of a step that requests join, while none was seen that they do not join


class JoinCost:
    """The constant part by which steps with prompts take longer than others, whatever the prompts' length: on a GPU
    these are launched piece by piece, where others are one captured graph.
    """

    def __init__(self) -> None:
        self._ended_s: float | None = None
        self._num_running = 0
        self._plain_s: deque[float] = deque(maxlen=STEPS)
        self._joined: deque[tuple[int, float]] = deque(maxlen=STEPS)  # tokens of prompts, seconds

    def saw(self, step: EngineStep) -> bool:
        """Whether the estimate may be another now. Steps are those of one engine, in order."""
        before_s, others = self._ended_s, self._num_running
        self._ended_s, self._num_running = step.ended_s, step.num_running
        if before_s is None or not others:  # it began when the request came, which nothing here knows
            return False
        if not step.prompt_tokens:
            self._plain_s.append(step.ended_s - before_s)
            return False
        self._joined.append((step.prompt_tokens, step.ended_s - before_s))
        return True

    @property
    def seconds(self) -> float:
        """0.0 while too few steps were seen."""
        if len(self._joined) < ENOUGH:
            return 0.0
        usual_s = statistics.median(step_s for _, step_s in self._joined)
        if len(self._plain_s) < ENOUGH:  # requests that wait for each other will show some
            return UNKNOWN * usual_s
        kept = [(tokens, step_s) for tokens, step_s in self._joined if step_s <= OUTLIER * usual_s]
        return max(0.0, _at_zero(kept) - statistics.median(self._plain_s))


def _at_zero(points: list[tuple[int, float]]) -> float:
    """The value at zero of the line through them, by least squares; longer prompts take no less time."""
    tokens, step_s = zip(*points, strict=True)
    mean_s = statistics.fmean(step_s)
    if min(tokens) == max(tokens):
        return mean_s
    slope, at_zero = statistics.linear_regression(tokens, step_s)
    return at_zero if slope > 0 else mean_s
