"""Warnings of a run about its mismatch, one for each time that a limit is crossed. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from agentgym.trainer.mismatch_config import PARTS, Action, MismatchConfig, Part

CURES: Final[Mapping[Part, str]] = {
    "engine": "give generator.dtype and trainer.dtype the same type, leave quantization off (generator.engine.options) "
    "or try another generator.engine",
    "staleness": "lower loop.max_staleness, optimizer.lr or trainer.epochs",
}
"""What to set, as the middle of a sentence."""
_ROUNDING = 0.1  # nats in the mean: bfloat16 gives 0.01 and less


class MismatchWatch:
    """Looks at each step's metrics; see MismatchConfig."""

    def __init__(self, config: MismatchConfig) -> None:
        self._config = config
        self._above: set[tuple[Part, Action]] = set()

    def look(self, metrics: Mapping[str, float]) -> list[str]:
        """A line for each limit that is crossed upwards. A step without a figure of a part leaves it as it was."""
        lines = []
        for part in PARTS:
            value = metrics.get(f"mismatch/{part}_kl")
            if value is None:
                continue
            for action in ("warn", "correct", "mask"):
                limit = self._config.limit(part, action)
                if limit is None or value <= limit:
                    self._above.discard((part, action))
                elif (part, action) not in self._above:
                    self._above.add((part, action))
                    lines.append(self._line(part, action, value, limit, metrics))
        return lines

    def _line(self, part: Part, action: Action, value: float, limit: float, metrics: Mapping[str, float]) -> str:
        found = f"mismatch/{part}_kl is {value:.3g} nats a token, above trainer.mismatch.{part}.{action} {limit:g}"
        whose = "all tokens" if part == "engine" else "stale tokens"
        if action == "correct":
            return f"{found}: while it is, {whose} have truncated importance weights, from the next step on"
        if action == "mask":
            what = "tokens" if self._config.drop == "token" else "the sequences of tokens"
            far = f"{what} more than {self._config.bound:g} nats off"
            return f"{found}: while it is, {far} count nothing among {whose}, from the next step on"
        return f"{found}: {_cause(part, metrics)}; {CURES[part]}, or set trainer.mismatch.{part}.correct"


def _cause(part: Part, metrics: Mapping[str, float]) -> str:
    if part == "staleness":
        age = metrics.get("mismatch/engine_age_steps", 0.0)
        since = f" (the engine's part, taken off, is {age:.0f} steps old; sync/mismatch_max is newer)" if age else ""
        return f"the policy has moved on since these tokens were sampled{since}"
    if metrics.get("mismatch/engine_abs_mean", 0.0) > _ROUNDING:
        return (
            "the same weights give another distribution, by more than rounding: the generators hold other weights than "
            "they report, quantize them, or sample with top-k or top-p, which the trainer does not know"
        )
    return "generators and trainer round the same weights differently: types, kernels, or quantization"
