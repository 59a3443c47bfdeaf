"""The chat templates of released models, and a tokenizer that has all their special tokens."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from agentgym.testing import tool_calls
from agentgym.text.tool_formats.base import ToolFormat
from agentgym.tools import MalformedCall, ToolCall

PLACE = Path(__file__).parent / "data" / "chat_templates" / "templates.json.gz"
REAL: Mapping[str, str] = json.loads(gzip.decompress(PLACE.read_bytes()))

EOS = {
    "cohere": "<|END_OF_TURN_TOKEN|>", "deepseek": "<｜end▁of▁sentence｜>", "diffusion": "<eos>",
    "exaone": "[|endofturn|]", "gemma": "<eos>", "glm": "<|endoftext|>", "gptoss": "<|return|>",
    "idefics": "<end_of_utterance>", "llama": "<|end_of_text|>", "llava": "</s>", "mistral": "</s>",
    "muse": "<|eot|>", "phi3": "<|endoftext|>", "qwen": "<|endoftext|>", "smolvlm": "<end_of_utterance>",
}  # fmt: skip
"""Of the base model, where that is not the token that ends a turn: the template has to give that one."""

_SPECIAL = re.compile(
    r"<\|[A-Za-z0-9_]+\|>|<｜[^｜'\"]+｜>|<[a-z]+_of_[a-z]+>|\[/?(?:INST|SYSTEM_PROMPT)\]|</s>|<[a-z_]+\|>"
    r"|<\|[a-z_]+>|\[gMASK\]|<sop>|\[\|[a-z]+\|\]"
)


def eos_of(name: str) -> str:
    return next((token for family, token in EOS.items() if name.startswith(family)), "<|im_end|>")


def write_tokenizers(folder: Path) -> None:
    """A folder for each end-of-sequence token. Byte-level BPE; `<think>` is a token, but not a special one."""
    special = {token for text in REAL.values() for token in _SPECIAL.findall(text)} | {*EOS.values(), "<|im_end|>"}
    tokenizer = trained(REAL.values(), [*sorted(special), "<bos>"])
    for eos in {*EOS.values(), "<|im_end|>"}:
        place = folder_of(folder, eos)
        place.mkdir()
        tokenizer.save(str(place / "tokenizer.json"))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<bos>", "eos_token": eos}
        (place / "tokenizer_config.json").write_text(json.dumps(config))


def folder_of(folder: Path, eos: str) -> Path:
    return folder / eos.encode().hex()


def trained(texts: Iterable[str], special: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1024, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False), AddedToken("</think>", special=False)])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def told(call: ToolCall | MalformedCall, tool_format: ToolFormat) -> object:
    """What has to survive of a call in this format."""
    kind = type(tool_format).__name__
    return tool_calls.as_read(call, texts_only=kind in ("QwenCoder", "Glm45"), strips=kind == "Glm45")
