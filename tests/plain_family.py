"""A model of any family by transformers alone, and the samples on which a trainer is compared with it."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from agentgym.trainer.engine import TrainingEngine
from agentgym.types import Sample

LENGTHS = (14, 9, 20, 11)


def loaded(folder: Path | str) -> Any:
    """By transformers alone: the model, and what it says of its weights."""
    factory: Any = AutoModelForCausalLM
    model, info = factory.from_pretrained(folder, output_loading_info=True)
    return model.eval(), info


def samples() -> list[Sample]:
    drawn = random.Random(0)
    return [
        Sample(
            sample_id=f"sample-{index}",
            token_ids=tuple(drawn.randrange(3, 96) for _ in range(length)),
            loss_mask=(0.0,) * 3 + (1.0,) * (length - 3),
            logprobs=(-4.5,) * length,
            advantages=(1.0 if index % 2 else -0.5,) * length,
            versions=(-1,) * 3 + (0,) * (length - 3),
        )
        for index, length in enumerate(LENGTHS)
    ]


def plain_logprobs(model: Any, sample: Sample) -> torch.Tensor:
    """Of each token after the first, by transformers alone."""
    tokens = torch.tensor([sample.token_ids])
    logits = model(input_ids=tokens, use_cache=False).logits[0, :-1].float()
    return logits.log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]


def largest_difference(trainer: TrainingEngine, model: Any) -> float:
    given = samples()
    with torch.no_grad():
        pairs = [
            (torch.tensor(ours[1:]), plain_logprobs(model, one))
            for one, ours in zip(given, trainer.logprobs(given), strict=True)
        ]
    return max(float((ours - theirs).abs().max()) for ours, theirs in pairs)
