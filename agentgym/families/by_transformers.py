"""Reads the config.json of any causal language model by transformers, which also says what weights it has.

The model is built on torch's meta device, so nothing of it takes memory; transformers is imported when it is asked.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from agentgym.errors import UserError, nearest
from agentgym.families.architecture import TIED_HEAD, Architecture, Experts, HeadTransform, WeightShapes

_SCALES = {"logits_scaling": -1, "logit_scale": 1, "lm_head_multiplier": 1}
"""Fields by which logits are multiplied (1) or divided (-1)."""
_SOFTCAP = "final_logit_softcapping"
_NUM_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_OF_EXPERTS = re.compile(r"\.layers\.(\d+)\..*\bexperts\.")


def read(config: Mapping[str, Any], path: object) -> Architecture:
    """Raises UserError for a model that transformers does not know, or cannot build with this config."""
    built, shapes = _on_meta(config, path)
    tied = bool(getattr(built, "tie_word_embeddings", False))
    if tied:
        shapes.pop(TIED_HEAD, None)
    layers = tuple(_field(built, "layer_types", "layers_block_type") or ())
    window = _field(built, "sliding_window", "attention_chunk_size")
    heads, dim = built.num_attention_heads, built.hidden_size
    experts = _experts(built, shapes)
    return Architecture(
        model_type=config["model_type"],
        vocab_size=built.vocab_size,
        dim=dim,
        ffn_dim=_active_width(built, experts),
        num_layers=built.num_hidden_layers,
        num_heads=heads,
        num_kv_heads=_field(built, "num_key_value_heads") or heads,
        head_dim=_field(built, "head_dim") or dim // heads,
        rope_theta=0.0,  # transformers computes positions
        norm_eps=float(_field(built, "rms_norm_eps", "norm_eps", "layer_norm_eps") or 0.0),
        tied=tied,
        qk_norm=any(".q_norm." in name for name in shapes),
        max_positions=_field(built, "max_position_embeddings") or 32_768,
        layers=layers or (("sliding_attention",) * built.num_hidden_layers if window else ()),
        window=window,
        head=head_transform(built),
        experts=experts,
        renormalised=bool(_field(built, "norm_topk_prob")),
        own_shapes=WeightShapes(shapes),
    )


def head_transform(config: Any) -> HeadTransform:
    """What the config says that the model does to its logits. config: of transformers."""
    scale = math.prod(float(_field(config, name) or 1.0) ** power for name, power in _SCALES.items())
    return HeadTransform(scale=scale, softcap=float(_field(config, _SOFTCAP) or 0.0))


def transformers_config(config: Mapping[str, Any], path: object) -> Any:
    """transformers' configuration of the language model in it. Raises UserError where there is none."""
    from transformers import CONFIG_MAPPING

    fields = {name: _with_floats(value) for name, value in config.items()}
    model_type = str(fields.pop("model_type", None))
    if model_type not in CONFIG_MAPPING:
        raise UserError(
            f"{path}: model_type is {model_type!r}, which the installed transformers does not know."
            f"{nearest(model_type, CONFIG_MAPPING)} A newer transformers may know it"
        )
    try:
        return CONFIG_MAPPING[model_type](**fields).get_text_config(decoder=True)
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise UserError(f"{path}: transformers does not read it as {model_type!r}: {error}") from error


def _with_floats(value: Any) -> Any:
    """transformers writes numbers that JSON lacks, as infinity, in a way of its own."""
    if isinstance(value, list):
        return tuple(map(_with_floats, value)) if any(map(_is_float, value)) else value
    return float(value["__float__"]) if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, dict) and list(value) == ["__float__"]


def _on_meta(config: Mapping[str, Any], path: object) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Its configuration, and the shapes of its weights under the names that they have in files."""
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.core_model_loading import revert_weight_conversion

    built = transformers_config(config, path)
    factory: Any = AutoModelForCausalLM  # its classmethods have no types
    try:
        with torch.device("meta"):
            model = factory.from_config(built)
    except (TypeError, ValueError, AttributeError, KeyError, RuntimeError) as error:
        raise UserError(f"{path}: transformers builds no language model of it: {error}") from error
    stored = revert_weight_conversion(model, model.state_dict())
    return built, {name: tuple(weight.shape) for name, weight in stored.items()}


def _experts(config: Any, shapes: Mapping[str, tuple[int, ...]]) -> Experts | None:
    layers = {int(found[1]) for name in shapes if (found := _OF_EXPERTS.search(name))}
    if not layers:
        return None
    return Experts(
        num=_field(config, *_NUM_EXPERTS),
        top_k=_field(config, "num_experts_per_tok", "top_k_experts"),
        layers=tuple(sorted(layers)),
    )


def _active_width(config: Any, experts: Experts | None) -> int:
    """Of the feed-forward layers, as one token meets them."""
    dense = int(_field(config, "intermediate_size") or 0)
    if experts is None:
        return dense
    return experts.top_k * int(_field(config, "moe_intermediate_size") or dense)


def _field(config: Any, *names: str) -> Any:
    """The first of them that is set."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)
