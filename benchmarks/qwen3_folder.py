"""Writes a folder of a released model's shape, Qwen3 or another: config.json and the tiny policy's tokenizer.

    python benchmarks/qwen3_folder.py 0.6B OUT
    python benchmarks/qwen3_folder.py Llama-3.2-1B OUT --weights
    python benchmarks/qwen3_folder.py 8B OUT --weights --device cuda
    agentgym train --recipe apps/grpo/qwen3_0.6b_two_gpus.yaml --model.path OUT --model.random_weights true

For runs that test speed and correctness at size, on machines that can't reach a model hub. --weights: random weights
too, drawn once (3.4 GB for 1.7B). Without them each run draws its own and writes them to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from agentgym.models.released import QWEN3, RELEASED, released_config
from agentgym.models.resolve import write_random_policy
from agentgym.models.tiny import policy_path

TINY = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048, "max_window_layers": 2}  # fmt: skip

NAMES = {name.rpartition("/")[2].removesuffix("-Instruct"): name for name in RELEASED}
NAMES |= {size: f"Qwen/Qwen3-{size}" for size in QWEN3}


def write_folder(name: str, out: Path, *, tiny: bool = False, weights: bool = False, device: str = "cpu") -> None:
    """name: of a released model, as in `model.path`. tiny: a shape of two layers instead, for a CPU.

    weights: draw random ones, unless the folder has those of this shape. device: which draws them, of torch.
    """
    known = released_config(name)
    assert known is not None, f"{name} is not in agentgym/models/released.py"
    source = policy_path()
    out.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special_tokens")):
            shutil.copy(file, out / file.name)
    eos = json.loads((source / "config.json").read_text())["eos_token_id"]
    shape = {key: value for key, value in (TINY if tiny else {}).items() if key in known}
    text = json.dumps({**known, **shape, "eos_token_id": eos}, indent=1)
    config = out / "config.json"
    if has_weights(out) and config.read_text() != text:
        for file in out.glob("*.safetensors*"):
            file.unlink()
    config.write_text(text)
    if weights and not has_weights(out):
        draw_weights(out, device)


def draw_weights(folder: Path, device: str) -> None:
    """They are moved into place when all are written."""
    partial = folder / "partial"
    try:
        write_random_policy(folder, partial, device=device)
        for file in sorted(partial.glob("*.safetensors*"), reverse=True):  # the index of several files first
            file.rename(folder / file.name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def model_field(folder: Path) -> str:
    """A recipe's field: the weights of the folder, or random ones where it has none."""
    return f"model={{path: '{folder}', random_weights: {str(not has_weights(folder)).lower()}}}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=sorted(NAMES), help="a size of Qwen3, or another model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--weights", action="store_true", help="random ones too")
    parser.add_argument("--device", default="cpu", help="what draws them; a GPU is quicker (default: %(default)s)")
    parser.add_argument("--tiny", action="store_true", help="two narrow layers of the kind, for a CPU")
    arguments = parser.parse_args()
    name = NAMES[arguments.model]
    write_folder(name, arguments.out, tiny=arguments.tiny, weights=arguments.weights, device=arguments.device)
    print(f"wrote {arguments.out}: {name}, {'with' if has_weights(arguments.out) else 'no'} weights")


if __name__ == "__main__":
    main()
