"""A tiny model of any family with random weights, and samples for it."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from agentgym.types import Sample

VOCAB_SIZE = 96


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
FAMILIES: dict[str, dict[str, object]] = {
    "qwen3": {"head_dim": 16},
    "qwen2": {},
    "llama": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 10_000.0, **LLAMA3}}
    | {"hidden_size": 48, "num_attention_heads": 6},  # three to a key, as in SmolLM2: not a power of two
}


def write_model(
    folder: Path,
    *,
    tied: bool = True,
    dtype: torch.dtype = torch.float32,
    layers: int = 2,
    family: str = "qwen3",
    seed: int = 0,
    **changes: object,
) -> str:
    """Write a Hugging Face folder with random weights, large enough to make logits differ. changes: of its config.

    family: of `FAMILIES`, or another one, which is made as its record says.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    if family not in FAMILIES:
        return _write_other(folder, family, seed, changes)
    settings: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": tied,
        "initializer_range": 0.2,
    }
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(family, **settings | FAMILIES[family] | changes))
    for name, weight in model.named_parameters():
        if name.endswith("bias"):  # transformers sets them to 0, which would hide a mistake
            torch.nn.init.uniform_(weight, -0.5, 0.5)
    model.to(dtype).save_pretrained(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return str(folder)


def _write_other(folder: Path, family: str, seed: int, changes: dict[str, object]) -> str:
    from transformers import AutoModelForCausalLM

    from agentgym.families.by_transformers import transformers_config
    from agentgym.families.family import tiny_config
    from agentgym.families.registry import families

    torch.manual_seed(seed)
    config = transformers_config(tiny_config(families()[family]) | changes, "config.json")
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0, 0.1)
    model.save_pretrained(folder)
    return str(folder)


def draw_samples(count: int, *, seed: int = 0, longest: int = 60) -> list[Sample]:
    """Samples of 2 to `longest` tokens: a prompt, then sampled tokens with some tool text in between."""
    draw, draw_version = random.Random(seed), random.Random(seed)
    samples = []
    for number in range(count):
        length = draw.randint(2, longest)
        prompt = draw.randint(1, length - 1)
        mask = [0.0] * prompt + [1.0 if draw.random() < 0.8 else 0.0 for _ in range(length - prompt)]
        mask[-1] = 1.0
        samples.append(
            Sample(
                sample_id=f"sample-{number}",
                token_ids=tuple(draw.randrange(VOCAB_SIZE) for _ in range(length)),
                loss_mask=tuple(mask),
                logprobs=tuple(-draw.uniform(2.0, 7.0) if m else 0.0 for m in mask),
                advantages=tuple(draw.gauss(0, 1) if m else 0.0 for m in mask),
                versions=tuple(draw_version.randrange(5) if m else -1 for m in mask),
                ref_logprobs=tuple(-draw.uniform(2.0, 7.0) if m else 0.0 for m in mask),
            )
        )
    return samples
