"""SmolLM2's GGUF file to a folder in Hugging Face format. The same file gives the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from agentgym.errors import UserError
from agentgym.models.gguf import GgufFile, read_gguf
from agentgym.models.safetensors import write_folder

CONTROL = 3  # GGUF's type of tokens that are no text
SPECIAL_IDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}  # <|im_start|>, <|im_end|>
OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
AROUND = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}


def convert(source: Path, folder: Path) -> None:
    """Write bfloat16 weights, config.json, the tokenizer and its chat template into an existing folder.

    Raises UserError for a file that is not SmolLM2.
    """
    gguf = read_gguf(source)
    fields: dict[str, Any] = gguf.fields
    kind = fields.get("general.architecture"), fields.get("tokenizer.ggml.pre"), "output.weight" in gguf.tensors
    if kind != ("llama", "smollm", False):
        raise UserError(f"{source} is not SmolLM2 but {kind[0]!r} with the tokenizer {kind[1]!r}")
    config = _config(fields)
    special = _special_tokens(fields)
    _write(folder / "config.json", config)
    _write(folder / "generation_config.json", SPECIAL_IDS)
    _write(folder / "tokenizer.json", _tokenizer(fields, special))
    _write(folder / "tokenizer_config.json", _tokenizer_config(fields))
    (folder / "chat_template.jinja").write_text(fields["tokenizer.chat_template"], encoding="utf-8")
    write_folder(folder, _weights(gguf, config))


def _weights(gguf: GgufFile, config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    for name, stored in gguf.tensors.items():
        tensor = torch.from_numpy(stored.read().copy())
        if name in AROUND:
            yield AROUND[name], tensor.to(torch.bfloat16)
            continue
        _, layer, part, suffix = name.split(".")  # blk.3.attn_q.weight
        if part in heads:
            tensor = _halves_apart(tensor, heads[part])
        yield f"model.layers.{layer}.{OF_LAYER[part]}.{suffix}", tensor.to(torch.bfloat16)


def _halves_apart(weight: Tensor, heads: int) -> Tensor:
    """GGUF has the two rows of a rotary pair side by side, Hugging Face half a head apart. weight: [heads * D, H]."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "dtype": "bfloat16",
        "head_dim": fields["llama.rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": fields["llama.embedding_length"],
        "intermediate_size": fields["llama.feed_forward_length"],
        "max_position_embeddings": fields["llama.context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": fields["llama.attention.head_count"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.6g}"),  # it is stored as float32
        "rope_parameters": {"rope_theta": fields["llama.rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": fields["llama.vocab_size"],
        **SPECIAL_IDS,
    }


def _special_tokens(fields: dict[str, Any]) -> list[int]:
    return [number for number, kind in enumerate(fields["tokenizer.ggml.token_type"]) if kind == CONTROL]


def _tokenizer(fields: dict[str, Any], special: list[int]) -> dict[str, Any]:
    """tokenizer.json: byte-level BPE in which every digit is a token, which is GGUF's pre-tokenizer `smollm`."""
    tokens = fields["tokenizer.ggml.tokens"]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": tokens[number], **plain} for number in special],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]],
        },
    }


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    named = {name.removesuffix("_id"): tokens[number] for name, number in SPECIAL_IDS.items()}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "unk_token": tokens[0],
        **named,
    }


def _write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False, sort_keys=path.stem == "config") + "\n", "utf-8")
