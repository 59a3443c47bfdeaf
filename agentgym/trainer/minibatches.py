"""Several updates by one batch: how its samples are split, and what their metrics are together. No torch."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from agentgym.rl.losses import Reduction
from agentgym.trainer.config import TrainerConfig
from agentgym.types import Sample

T = TypeVar("T")
TOKENS = "train/trained_tokens"
SUMS = (TOKENS, "train/tokens", "train/time/train_pack_s", "train/time/train_compute_s")


def minibatches(samples: Sequence[T], config: TrainerConfig, step: int) -> Iterator[list[T]]:
    """trainer.epochs times the samples in another order, each in trainer.minibatches parts of equal size, up to one.

    A function of trainer.seed and the step, so that all processes and a resumed run split alike. Parts without a sample
    are left out.
    """
    draw = random.Random(f"{config.seed}-{step}")
    for _ in range(config.epochs):
        order = draw.sample(range(len(samples)), len(samples))
        count = min(config.minibatches, len(samples))
        for part in range(count):
            yield [samples[index] for index in order[part::count]]


def combined(updates: Sequence[Mapping[str, float]], reductions: Mapping[str, Reduction]) -> dict[str, float]:
    """Metrics of a step from those of its updates: means by their trained tokens, sums, and the largest of a `max`."""
    result = {"train/updates": float(len(updates))}
    for name in dict.fromkeys(name for metrics in updates for name in metrics):
        given = [(metrics[name], metrics[TOKENS]) for metrics in updates if name in metrics]
        how = "sum" if name in SUMS else reductions.get(name, "mean")
        if how == "mean":
            result[name] = sum(value * weight for value, weight in given) / sum(weight for _, weight in given)
        else:
            values = [value for value, _ in given]
            result[name] = sum(values) if how == "sum" else max(values)
    return result


def old_logprobs(samples: Sequence[Sample]) -> list[float]:
    """The old log-probabilities of the trained tokens."""
    pairs = (zip(sample.loss_mask, sample.old_logprobs, strict=True) for sample in samples)
    return [value for pair in pairs for mask, value in pair if mask]
