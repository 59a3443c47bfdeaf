"""Whether a model computes documents that share a row as it computes each alone: measured, since wrong is silent."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TypeAlias

from agentgym.families.family import Family
from agentgym.trainer.config import DType
from agentgym.types import Sample

LIMITS: dict[DType, float] = {"float32": 1e-3, "bfloat16": 0.1}
"""Nats by which a log-probability may differ. Of models that mix their documents it differs by some nats; in bfloat16
rounding depends on a token's place in its row."""
LENGTHS = (13, 8)  # longer than the shortest windows and convolutions of models, and not a power of two
Score: TypeAlias = Callable[[Sequence[Sample], bool], list[tuple[float, ...]]]
"""Log-probabilities of samples' tokens. Gets the samples, and whether each has a row of its own."""


def why_by_row(family: Family, score: Score, *, vocab_size: int, dtype: DType) -> str:
    """Why each document needs a row of its own; empty where they can share one. Collective, as `score` is."""
    name = family.model_types[0]
    if family.packs == "row":
        return f"layers of {name} carry state along a row"
    difference = packed_difference(score, vocab_size)
    if difference <= LIMITS[dtype]:
        return ""
    return (
        f"two documents of {name} in one row have log-probabilities that differ from those of each alone by "
        f"{difference:.2g} nats (at most {LIMITS[dtype]:g} in {dtype})"
    )


def packed_difference(score: Score, vocab_size: int) -> float:
    """The largest difference between log-probabilities of two short random documents, packed against apart."""
    documents = [document(f"probe-{n}", n, vocab_size) for n in LENGTHS]
    packed, apart = score(documents, False), score(documents, True)
    pairs = zip(packed, apart, strict=True)
    return max(abs(ours - alone) for one, other in pairs for ours, alone in zip(one, other, strict=True))


def document(name: str, length: int, vocab_size: int) -> Sample:
    """Random tokens that follow from the name, all of which are trained."""
    drawn = random.Random(name)
    tokens = [drawn.randrange(vocab_size) for _ in range(length)]
    zeros, trained = (0.0,) * length, (0.0,) + (1.0,) * (length - 1)
    return Sample(
        sample_id=name,
        token_ids=tuple(tokens),
        loss_mask=trained,
        logprobs=zeros,
        advantages=zeros,
        versions=(-1,) + (0,) * (length - 1),
    )
