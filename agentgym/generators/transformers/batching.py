"""Whether a model computes sequences in a batch as it computes each alone: measured, since wrong is silent."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from agentgym.generators.transformers.alone import Alone, Computing
from agentgym.generators.transformers.cache_rows import CacheRows
from agentgym.generators.transformers.sequence import Sequence
from agentgym.generators.transformers.together import Together
from agentgym.models.routers import Routers
from agentgym.types import GenerateRequest, SamplingParams

log = logging.getLogger(__name__)

LIMITS = {torch.float32: 1e-3, torch.bfloat16: 0.5}
"""By which a logit may differ. Of a model that mixes up its rows it differs by some."""
LENGTHS = (13, 8)
_OF_THE_LONGEST = ("longrope", "dynamic")
"""Rotary frequencies that follow from the longest sequence of a batch."""


def computing_of(model: nn.Module, routers: Routers | None, *, max_batch: int, alone: bool) -> Computing:
    """What computes the model's sequences: in a batch, if that gives the numbers of each alone."""
    why = "generator.batch_invariant asks for it"
    if not alone:
        try:
            rows = CacheRows(model.config)
            why = why_not_together(model, rows)
        except ValueError as error:
            why = str(error)
    if why:
        log.warning("each sequence is computed alone, which is slow: %s", why)
        return Alone(model, routers)
    on_cpu = next(model.parameters()).device.type == "cpu"
    # a CPU is fastest when one pass fits its caches, a GPU when it is filled
    return Together(model, rows, routers, max_padded_tokens=1024 if on_cpu else 16_384, keep=max_batch)


def why_not_together(model: nn.Module, rows: CacheRows) -> str:
    """Empty for a model that computes two sequences of different lengths, and then a turn after one of them, right."""
    config: Any = model.config
    text = config.get_text_config(decoder=True)
    rope = getattr(text, "rope_parameters", None) or {}
    for one in (rope, *rope.values()):  # of all layers, or of each kind of them
        if isinstance(one, Mapping) and (kind := one.get("rope_type")) in _OF_THE_LONGEST:
            return f"its rotary frequencies ({kind}) depend on the longest sequence of a batch"
    together, alone = Together(model, rows, None, max_padded_tokens=1024, keep=2), Alone(model, None)
    sequences, worst = [_probe(size, text.vocab_size) for size in LENGTHS], 0.0
    limit = LIMITS.get(next(model.parameters()).dtype, 0.5)
    try:
        for step in range(4):
            computed, logits_BV = together.compute(sequences)
            for sequence, logits_V in zip(computed, logits_BV, strict=True):
                _, expected_BV = alone.compute([_again(sequence)])
                difference = float((logits_V - expected_BV[0]).abs().max())
                worst = max(worst, math.inf if math.isnan(difference) else difference)
                sequence.tokens.append(step)
            if step == 1:  # the longer one ends, and a next turn goes on after it
                together.leave(sequences[:1])
                sequences[0] = _again(sequences[0])
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError) as error:
        return f"a batch of it ends in {type(error).__name__}: {error}"
    return "" if worst <= limit else f"logits in a batch differ from those alone by {worst:.2g} (at most {limit:g})"


def _probe(size: int, vocab_size: int) -> Sequence:
    return _of([(17 + 31 * place) % vocab_size for place in range(size)])


def _again(sequence: Sequence) -> Sequence:
    """The same tokens, of which nothing is computed."""
    return _of(sequence.tokens)


def _of(tokens: list[int]) -> Sequence:
    request = GenerateRequest(prompt_ids=tuple(tokens), sampling=SamplingParams(max_tokens=1))
    return Sequence(request=request, submitted_s=0.0, seed=0, tokens=list(tokens))
