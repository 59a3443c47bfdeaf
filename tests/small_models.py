"""Folders of small models with the architecture and the chat template of released ones, for random weights."""

from __future__ import annotations

import json
from pathlib import Path

from real_templates import REAL, trained

from agentgym.models.released import released_config

TEMPLATES = {"Qwen": "qwen3", "Llama-3.2": "llama3_2", "Llama-3.1": "llama3_1", "smollm2": "smollm2"}
"""By a part of the model's name."""
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>"]
SPECIAL += ["<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"]
SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1}


def template_of(name: str) -> str:
    return REAL[next(template for part, template in TEMPLATES.items() if part in name)]


def write_small(name: str, folder: Path, **more: int) -> Path:
    """Two layers of 32 (more: other sizes) with a vocabulary of about a thousand; all else is the released model's."""
    folder.mkdir()
    end = "<|eot_id|>" if "Llama" in name else "<|im_end|>"
    begin = "<|begin_of_text|>" if "Llama" in name else "<|im_start|>"
    tokenizer = trained([template_of(name)], SPECIAL)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": begin, "eos_token": end}
    (folder / "tokenizer_config.json").write_text(json.dumps(names | {"chat_template": template_of(name)}))
    config = released_config(name)
    assert config is not None
    ids = {"eos_token_id": tokenizer.token_to_id(end), "vocab_size": tokenizer.get_vocab_size()}
    (folder / "config.json").write_text(json.dumps(config | SMALL | ids | more))
    return folder
