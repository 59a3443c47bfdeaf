"""The start of the tiny policy: its tokenizer and chat template, its shape, random weights."""

from __future__ import annotations

import itertools
import json
import re
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentgym.rl.demonstrations import Demonstration, written
from agentgym.text.chat import ChatRenderer
from agentgym.text.tokenizer import HuggingFaceTokenizer
from apps.sft.mix import MixConfig, mixed
from apps.sft.tokenizer import SPECIAL_TOKENS, save_tokenizer, train_tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeConfig:
    """A dense Qwen3 with tied embeddings."""

    vocab_size: int = 1280
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 320
    max_position_embeddings: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerConfig:
    """conversations: that it is trained on. max_token_chars: the longest token."""

    conversations: int = 6000
    max_token_chars: int = 24


def write_start(folder: Path, shape: ShapeConfig, tokenizer: TokenizerConfig, mix: MixConfig, seed: int) -> None:
    """A Hugging Face folder with random weights. The same arguments give the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    shown = itertools.islice(mixed(mix, seed, -1), tokenizer.conversations)
    trained = train_tokenizer(rendered(shown), vocab_size=shape.vocab_size, max_token_chars=tokenizer.max_token_chars)
    save_tokenizer(trained, folder, max_length=shape.max_position_embeddings)
    _write_random_weights(folder, shape, seed)


def rendered(shown: Iterable[Demonstration]) -> Iterator[str]:
    """What the policy reads and writes, the texts between special tokens: through a tokenizer of single bytes."""
    between = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(train_tokenizer([], vocab_size=0, max_token_chars=1), Path(folder), max_length=2**20)
        renderer = ChatRenderer(HuggingFaceTokenizer(folder))
    for one in shown:
        text = renderer.tokenizer.decode(written(one, renderer).token_ids)
        yield from filter(None, between.split(text))


def _write_random_weights(folder: Path, shape: ShapeConfig, seed: int) -> None:
    """Write config.json and model.safetensors."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    end = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]["<|im_end|>"]
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_hidden_layers,
        num_attention_heads=shape.num_attention_heads,
        num_key_value_heads=shape.num_key_value_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position_embeddings,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        dtype="float32",
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
