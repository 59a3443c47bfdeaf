"""The architectures of released models that the recipes name: known without a hub, so that a run can be planned."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import NamedTuple

from agentgym.models.smollm2 import SMOLLM2


class Sizes(NamedTuple):
    """The sizes of a dense decoder. context: tokens. rope_factor: of Llama 3.1's scaled positions; 0 is none."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    tied: bool
    context: int
    rope_theta: float
    rope_factor: float = 0.0


QWEN3 = {
    "0.6B": Sizes(1024, 28, 16, 8, 128, 3072, 151_936, True, 40_960, 1e6),
    "1.7B": Sizes(2048, 28, 16, 8, 128, 6144, 151_936, True, 40_960, 1e6),
    "4B": Sizes(2560, 36, 32, 8, 128, 9728, 151_936, True, 40_960, 1e6),
    "8B": Sizes(4096, 36, 32, 8, 128, 12_288, 151_936, False, 40_960, 1e6),
}
"""By size. Source: the config.json files of the Qwen3 release."""
LLAMA_1B = Sizes(2048, 16, 32, 8, 64, 8192, 128_256, True, 131_072, 5e5, 32.0)
LLAMA_8B = Sizes(4096, 32, 32, 8, 128, 14_336, 128_256, False, 131_072, 5e5, 8.0)
SMOLLM2_135M = Sizes(576, 30, 9, 3, 64, 1536, 49_152, True, 8192, 1e5)


def qwen3_config(size: str) -> dict[str, object]:
    """config.json of that size of `QWEN3`, without the tokenizer's part."""
    return _config("qwen3", "Qwen3ForCausalLM", QWEN3[size], eps=1e-6)


def _llama_config(sizes: Sizes) -> dict[str, object]:
    return _config("llama", "LlamaForCausalLM", sizes, eps=1e-5)


def _config(model_type: str, architecture: str, sizes: Sizes, *, eps: float) -> dict[str, object]:
    rope: dict[str, object] = {"rope_type": "default", "rope_theta": sizes.rope_theta}
    if sizes.rope_factor:
        rope |= {"rope_type": "llama3", "factor": sizes.rope_factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = 8192
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": sizes.vocabulary,
        "hidden_size": sizes.hidden,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.head_dim,
        "intermediate_size": sizes.ffn,
        "tie_word_embeddings": sizes.tied,
        "rope_theta": sizes.rope_theta,
        "rope_parameters": rope,
        "rms_norm_eps": eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": sizes.context,
        "initializer_range": 0.02,
        "dtype": "bfloat16",
    }


RELEASED: Mapping[str, Mapping[str, object]] = {
    **{f"Qwen/Qwen3-{size}": qwen3_config(size) for size in QWEN3},
    **{f"meta-llama/Llama-3.2-1B{kind}": _llama_config(LLAMA_1B) for kind in ("", "-Instruct")},
    **{f"meta-llama/Llama-3.1-8B{kind}": _llama_config(LLAMA_8B) for kind in ("", "-Instruct")},
    **dict.fromkeys((SMOLLM2, "HuggingFaceTB/SmolLM2-135M-Instruct"), _llama_config(SMOLLM2_135M)),
}
"""config.json by the name that `model.path` has."""


def released_config(path: str) -> dict[str, object] | None:
    """A copy of the model's config.json, without the ids of its special tokens; None for a model that is not here."""
    found = RELEASED.get(path)
    return None if found is None else copy.deepcopy(dict(found))
