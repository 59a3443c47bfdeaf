"""Writes a Qwen3 model folder of a released size, without weights: config.json and the tiny policy's tokenizer.

    python benchmarks/qwen3_folder.py 0.6B OUT
    agentgym train --recipe apps/grpo/qwen3_0.6b_two_gpus.yaml --model.path OUT --model.random_weights true

For runs that test speed and correctness at size, on machines that can't reach a model hub.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from agentgym.models.tiny import policy_path

# hidden, layers, heads, key-value heads, intermediate, tied embeddings (the config.json files of the Qwen3 release)
SIZES = {
    "0.6B": (1024, 28, 16, 8, 3072, True),
    "1.7B": (2048, 28, 16, 8, 6144, True),
    "4B": (2560, 36, 32, 8, 9728, True),
    "8B": (4096, 36, 32, 8, 12288, False),
}


def config(size: str, eos_token_id: int) -> dict[str, object]:
    """The architecture of that size, with the end token of the tokenizer."""
    hidden, layers, heads, key_value_heads, intermediate, tied = SIZES[size]
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151936,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": 128,
        "intermediate_size": intermediate,
        "tie_word_embeddings": tied,
        "rope_theta": 1000000,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000},
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 40960,
        "initializer_range": 0.02,
        "eos_token_id": eos_token_id,
        "dtype": "bfloat16",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(SIZES))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    source = policy_path()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, arguments.out / file.name)
    eos = json.loads((source / "config.json").read_text())["eos_token_id"]
    (arguments.out / "config.json").write_text(json.dumps(config(arguments.size, eos), indent=1))
    print(f"wrote {arguments.out}: Qwen3-{arguments.size}, no weights")


if __name__ == "__main__":
    main()
