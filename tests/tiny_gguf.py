"""Writes a small GGUF file in SmolLM2's layout, value by value, and says what its weights are."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np

DIM, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 64, 96, 4, 2, 16, 2
CHARACTERS = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
"""The 256 that stand for bytes in byte-level BPE: printable ones for themselves, the others in order from 256."""
MERGES = ["Ġ t", "h e", "Ġt he", "1 2"]
TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *CHARACTERS, *(merge.replace(" ", "") for merge in MERGES)]
TOKENS += [f"<{number}>" for number in range(-len(TOKENS) % 32)]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
FIELDS: dict[str, object] = {
    "general.architecture": "llama",
    "tokenizer.ggml.pre": "smollm",
    "llama.vocab_size": len(TOKENS),
    "llama.context_length": 256,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": FFN,
    "llama.block_count": LAYERS,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.rope.dimension_count": HEAD_DIM,
    "llama.rope.freq_base": 100_000.0,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [3] * 3 + [1] * (len(TOKENS) - 3),
    "tokenizer.ggml.merges": MERGES,
    "tokenizer.chat_template": TEMPLATE,
}


def write_gguf(path: Path, *, seed: int = 0, **changes: object) -> dict[str, list[list[float]]]:
    """changes: of fields, with _ for the dots. Returns each weight's rows as Hugging Face orders and names them."""
    draw = random.Random(seed)
    fields = FIELDS | {key: changes[key.replace(".", "_")] for key in FIELDS if key.replace(".", "_") in changes}
    weights: dict[str, list[list[float]]] = {}
    infos, data = b"", b""

    def add(name: str, hf_name: str, rows: int, columns: int, encode, heads: int = 0) -> None:  # type: ignore[no-untyped-def]
        nonlocal infos, data
        kind, stored, values = encode(draw, rows, columns)
        shape = (columns,) if rows == 1 else (columns, rows)
        infos += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, len(data))
        data += stored + bytes(-len(stored) % 32)
        weights[hf_name] = halves_apart(values, heads) if heads else values

    add("token_embd.weight", "model.embed_tokens.weight", len(TOKENS), DIM, q8_0)
    for layer in range(LAYERS):
        of, to = f"blk.{layer}", f"model.layers.{layer}"
        add(f"{of}.attn_norm.weight", f"{to}.input_layernorm.weight", 1, DIM, f32)
        add(f"{of}.attn_q.weight", f"{to}.self_attn.q_proj.weight", HEADS * HEAD_DIM, DIM, q4_1, HEADS)
        add(f"{of}.attn_k.weight", f"{to}.self_attn.k_proj.weight", KV_HEADS * HEAD_DIM, DIM, q4_1, KV_HEADS)
        add(f"{of}.attn_v.weight", f"{to}.self_attn.v_proj.weight", KV_HEADS * HEAD_DIM, DIM, q4_1)
        add(f"{of}.attn_output.weight", f"{to}.self_attn.o_proj.weight", DIM, HEADS * HEAD_DIM, q4_1)
        add(f"{of}.ffn_norm.weight", f"{to}.post_attention_layernorm.weight", 1, DIM, f32)
        add(f"{of}.ffn_gate.weight", f"{to}.mlp.gate_proj.weight", FFN, DIM, q4_1)
        add(f"{of}.ffn_up.weight", f"{to}.mlp.up_proj.weight", FFN, DIM, q4_1)
        add(f"{of}.ffn_down.weight", f"{to}.mlp.down_proj.weight", DIM, FFN, q4_1)
    add("output_norm.weight", "model.norm.weight", 1, DIM, f32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(fields))
    head += b"".join(text(key) + value(content) for key, content in fields.items()) + infos
    path.write_bytes(head + bytes(-len(head) % 32) + data)
    return weights


def text(content: str) -> bytes:
    return struct.pack("<Q", len(content.encode())) + content.encode()


def value(content: object) -> bytes:
    """With its type before it: 4 is a uint32, 6 a float32, 8 a string, 9 an array."""
    if isinstance(content, list):
        of = 8 if isinstance(content[0], str) else 4
        items = b"".join(value(item)[4:] for item in content)
        return struct.pack("<IIQ", 9, of, len(content)) + items
    if isinstance(content, str):
        return struct.pack("<I", 8) + text(content)
    return struct.pack("<If", 6, content) if isinstance(content, float) else struct.pack("<II", 4, content)


def half(number: float) -> float:
    return float(np.float16(number))


def f32(draw: random.Random, rows: int, columns: int) -> tuple[int, bytes, list[list[float]]]:
    numbers = [float(np.float32(draw.uniform(0.5, 1.5))) for _ in range(columns)]
    return 0, struct.pack(f"<{columns}f", *numbers), [numbers]


def q8_0(draw: random.Random, rows: int, columns: int) -> tuple[int, bytes, list[list[float]]]:
    stored, values = b"", []
    for _ in range(rows):
        row: list[float] = []
        for _ in range(columns // 32):
            scale, numbers = half(draw.uniform(0.001, 0.002)), [draw.randint(-127, 127) for _ in range(32)]
            stored += struct.pack("<e32b", scale, *numbers)
            row += [scale * number for number in numbers]
        values.append(row)
    return 8, stored, values


def q4_1(draw: random.Random, rows: int, columns: int) -> tuple[int, bytes, list[list[float]]]:
    stored, values = b"", []
    for _ in range(rows):
        row: list[float] = []
        for _ in range(columns // 32):
            scale, least = half(draw.uniform(0.02, 0.04)), half(draw.uniform(-0.3, -0.2))
            numbers = [draw.randint(0, 15) for _ in range(32)]
            packed = [low + 16 * high for low, high in zip(numbers[:16], numbers[16:], strict=True)]
            stored += struct.pack("<ee16B", scale, least, *packed)
            row += [scale * number + least for number in numbers]
        values.append(row)
    return 3, stored, values


def halves_apart(rows: list[list[float]], heads: int) -> list[list[float]]:
    """Of each head the even rows, then the odd ones."""
    size = len(rows) // heads
    return [
        row for first in range(0, len(rows), size) for odd in (0, 1) for row in rows[first + odd : first + size : 2]
    ]
