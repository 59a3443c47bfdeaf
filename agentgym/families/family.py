"""The record of a model family. Engines, planner, export and LoRA read it, and never compare `model_type`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from agentgym.families.dense import Dense

DENSE_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, slots=True, kw_only=True)
class Router:
    """How a mixture of experts chooses, as far as recorded choices are replayed."""

    module: str
    """The router in its layer, for example "mlp.gate"."""
    scores: Literal["all", "renormalised", "chosen"]
    """A chosen expert's weight: its softmax over all, the same divided by the sum over the chosen, or its softmax over
    the chosen alone. "all" becomes "renormalised" where config.json has norm_topk_prob."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What is known of a family. A model of no known family gets the defaults, under its own `model_type`."""

    model_types: tuple[str, ...]
    """As config.json names it, and its text part's, where that has a name of its own."""
    dense: Dense | None = None
    """What the trainer engine `titan` and the native generator need, which compute nothing else."""
    mixture: Dense | None = None
    """What `titan` needs of a mixture of experts that it computes: its layers beside the experts."""
    packs: Literal["mask", "row"] = "mask"
    """"mask": documents of one row are kept apart by masks, which the start of a run proves. "row": each sample needs a
    row of its own, because a layer carries state along the row."""
    masks: Literal["positions", "given"] = "positions"
    """Of "mask", in transformers: it makes masks of positions that begin again at 0, or must be given them, one for
    each of `Architecture.layer_kinds`."""
    attention: Literal["sdpa", "eager"] = "sdpa"
    """Of transformers, on any device."""
    adapter_targets: tuple[str, ...] = DENSE_TARGETS
    """The matrices of a layer that can have adapters."""
    router: Router | None = None
    vllm_names: Mapping[str, str] = field(default_factory=dict)
    """Beginnings of weights' names, as in files, and what they are in the model that vLLM loads."""
    tiny: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a config.json for a random model of some thousand weights, beside `TINY`. Tests make it."""


TINY: Mapping[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def tiny_config(family: Family) -> dict[str, Any]:
    """A config.json of the family, of a model that a test computes in milliseconds."""
    return {**TINY, "model_type": family.model_types[0], **family.tiny}
