"""A model of transformers without its head, and ours after it.

Axes: R rows, L tokens of a row, N wanted entries, D hidden states, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from agentgym.errors import UserError
from agentgym.families.architecture import TIED_HEAD, Architecture
from agentgym.families.by_transformers import transformers_config
from agentgym.families.family import Family
from agentgym.trainer.head import Scoring, transformed


class Head(nn.Module):
    """Scores tokens as `LogProbHead` does. weight: None where the head is the embedding, which the model passes."""

    def __init__(self, shape: tuple[int, int] | None, scoring: Scoring) -> None:
        super().__init__()
        self.weight = None if shape is None else nn.Parameter(torch.empty(shape))
        self.scoring = scoring
        self.targets: tuple[Tensor, Tensor] | None = None
        self.hidden: Tensor | None = None

    def forward(self, hidden_RLD: Tensor, embedding_VD: Tensor) -> Tensor:
        """[2, N] of the targets, or logits [R, L, V] while none are set."""
        weight_VD = embedding_VD if self.weight is None else self.weight
        if self.targets is None:
            return transformed(nn.functional.linear(hidden_RLD, weight_VD).float(), self.scoring.transform)
        entries_N, labels_N = self.targets
        hidden_ND = hidden_RLD.flatten(0, 1).index_select(0, entries_N)
        self.hidden = hidden_ND.detach()
        return self.scoring.score(hidden_ND, weight_VD, labels_N)


class Decoder(nn.Module):
    """Its weights have the names that transformers gives them: those of `model`, and `lm_head.weight` if not tied."""

    def __init__(self, body: nn.Module, head: Head, fill: Callable[[nn.Module], None]) -> None:
        """fill: draws the weights of a module, and computes its buffers."""
        super().__init__()
        self.model = body
        self.lm_head = head
        self.fill = fill

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.model.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    def forward(self, token_ids_RL: Tensor, *, positions: Tensor, attention_masks: object) -> Tensor:
        body: Any = self.model
        output = body(input_ids=token_ids_RL, position_ids=positions, attention_mask=attention_masks, use_cache=False)
        return self.lm_head(output.last_hidden_state, body.get_input_embeddings().weight)  # type: ignore[no-any-return]


def build_decoder(
    config: Mapping[str, Any], architecture: Architecture, family: Family, scoring: Scoring, *, flex: bool
) -> Decoder:
    """On the meta device, in float32: give it memory, then `fill_buffers`, then weights.

    Raises UserError for a model that does not compute with the attention, or has a head that is not read here.
    """
    from transformers import AutoModelForCausalLM

    factory: Any = AutoModelForCausalLM  # its classmethods have no types
    attention = "flex_attention" if flex else family.attention
    own = transformers_config(config, "config.json")
    try:
        with torch.device("meta"):
            whole = factory.from_config(own, dtype=torch.float32, attn_implementation=attention)
            head = Head(None if architecture.tied else (architecture.vocab_size, architecture.dim), scoring)
    except (ValueError, ImportError) as error:
        raise UserError(f"transformers can't compute {architecture.model_type} with {attention}: {error}") from error
    body = getattr(whole, "model", None)
    if not isinstance(body, nn.Module) or not isinstance(getattr(body, "layers", None), nn.ModuleList):
        raise UserError(f"transformers keeps the layers of {architecture.model_type} elsewhere than in model.layers")
    names = [name for name, _ in whole.named_parameters() if not name.startswith("model.")]
    if unread := [name for name in names if name != TIED_HEAD]:
        raise UserError(
            f"the head of this {architecture.model_type} has {', '.join(unread)}, which is not trained here"
        )
    return Decoder(body, head, whole._init_weights)


@torch.no_grad()
def fill_buffers(decoder: Decoder) -> None:
    """Compute what is in no file, as frequencies of positions. Weights stay as they are.

    Raises UserError where transformers does not compute one of them.
    """
    buffers = {  # state_dict() has other names where layers are wrapped for recomputation
        f"{path}.{name}": one
        for path, module in decoder.model.named_modules()
        for name, one in module.named_buffers(recurse=False)
        if name in module._non_persistent_buffers_set
    }
    for buffer in buffers.values():
        if buffer.is_floating_point():
            buffer.fill_(math.nan)
    for weight in decoder.parameters():
        weight._is_hf_initialized = True  # type: ignore[attr-defined]  # transformers leaves it alone
    decoder.model.apply(decoder.fill)
    unknown = [name for name, buffer in buffers.items() if buffer.is_floating_point() and buffer.isnan().any()]
    if unknown:
        raise UserError(
            f"transformers computes {unknown[0]} only as it makes the model, and the trainer needs it later"
        )
