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

from agentgym.models.released import QWEN3, released_config
from agentgym.models.tiny import policy_path

TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048, "max_window_layers": 2}  # fmt: skip


def write_folder(name: str, out: Path, *, tiny: bool = False) -> None:
    """name: of a released model, as in `model.path`. tiny: a shape of two layers instead, for a CPU."""
    known = released_config(name)
    assert known is not None, f"{name} is not in agentgym/models/released.py"
    source = policy_path()
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, out / file.name)
    eos = json.loads((source / "config.json").read_text())["eos_token_id"]
    shape = {key: value for key, value in (TINY if tiny else {}).items() if key in known}
    (out / "config.json").write_text(json.dumps({**known, **shape, "eos_token_id": eos}, indent=1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(QWEN3))
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    write_folder(f"Qwen/Qwen3-{arguments.size}", arguments.out)
    print(f"wrote {arguments.out}: Qwen3-{arguments.size}, no weights")


if __name__ == "__main__":
    main()
