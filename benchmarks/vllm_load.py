"""How long vLLM takes to load new weights: `reload_weights`, which builds each layer anew, and in place.

    .venv-vllm/bin/python benchmarks/vllm_load.py --layers 28

A Qwen3 of that many small layers, so what is measured is the time that does not depend on the size of the weights:
requests wait for it in every update. On a CPU vLLM's packing of weights is left out, as on a GPU. Prints a Markdown
table of medians.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from agentgym.generators.vllm.worker import load_in_place

QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 128, "intermediate_size": 256,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 2048,
         "tie_word_embeddings": True, "max_position_embeddings": 256}  # fmt: skip
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "OMP_NUM_THREADS": "1",
}


def leave_unpacked() -> None:
    from vllm.model_executor.layers.linear import UnquantizedLinearMethod
    from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod

    def keep(method: object, layer: torch.nn.Module) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    UnquantizedLinearMethod.process_weights_after_loading = keep
    UnquantizedEmbeddingMethod.process_weights_after_loading = keep


def seconds(load: Callable[[], None], rounds: int) -> float:
    """The median, after a first time that is not counted."""
    times = []
    for _ in range(rounds + 1):
        begin_s = time.perf_counter()
        load()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begin_s)
    return statistics.median(times[1:])


def both_ways(worker: Any, weights: dict[str, torch.Tensor], rounds: int) -> tuple[float, float]:
    """In vLLM's worker: seconds of `reload_weights` and in place."""
    runner = worker.model_runner
    placed = {name: weight.to(worker.device) for name, weight in weights.items()}

    def entries() -> Iterator[tuple[str, torch.Tensor]]:
        return iter(placed.items())

    slow = seconds(lambda: runner.reload_weights(entries(), is_checkpoint_format=True), rounds)
    return slow, seconds(lambda: load_in_place(runner.get_model(), entries()), rounds)


def measure(layers: int, rounds: int, folder: Path) -> tuple[int, float, float]:
    from transformers import AutoConfig, AutoModelForCausalLM
    from vllm import LLM

    (folder / "config.json").write_text(json.dumps({**QWEN3, "num_hidden_layers": layers}))
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).to(torch.bfloat16)
    model.save_pretrained(folder)
    weights = model.state_dict()
    leave_unpacked()
    llm = LLM(model=str(folder), skip_tokenizer_init=True, enforce_eager=True, max_model_len=256, dtype="bfloat16")
    ((slow, quick),) = llm.collective_rpc(both_ways, args=(weights, rounds))
    return len(weights), slow, quick


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    with tempfile.TemporaryDirectory() as folder:
        count, slow, quick = measure(arguments.layers, arguments.rounds, Path(folder))
    print("| tensors | reload_weights, ms | in place, ms | ratio |\n|--:|--:|--:|--:|")
    print(f"| {count} | {slow * 1000:.0f} | {quick * 1000:.0f} | {slow / quick:.1f} |")


if __name__ == "__main__":
    main()
