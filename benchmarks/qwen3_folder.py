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

from agentgym.models.released import QWEN3, qwen3_config
from agentgym.models.tiny import policy_path


def config(size: str, eos_token_id: int) -> dict[str, object]:
    """The architecture of that size, with the end token of the tokenizer."""
    return {**qwen3_config(size), "eos_token_id": eos_token_id}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=sorted(QWEN3))
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
