"""Tokens a second and model FLOPs utilisation of the trainer, log-probability head and optimizer step included.

    python benchmarks/trainer_rate.py FOLDER --gpus 4 --documents 2048 --rows 4
    python benchmarks/trainer_rate.py FOLDER --gpus 2 --tensor-parallel 2 --activation-checkpoint selective

FOLDER: a model with weights or, as benchmarks/qwen3_folder.py writes it, without. MFU is 6 * parameters * tokens a
second over --peak-tflops a GPU (790: dense bfloat16 of an H200 as measured). Prints JSON for every step; medians leave
out the first, which compiles.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import tempfile
import time
from pathlib import Path

from agentgym.actors.runtime import Runtime
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig, TrainerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample


def document(index: int, length: int) -> Sample:
    """Random tokens, all but the first trained."""
    numbers = random.Random(index)
    return Sample(
        sample_id=f"document-{index}",
        token_ids=tuple(numbers.randrange(1000) for _ in range(length)),
        loss_mask=(0.0, *(1.0,) * (length - 1)),
        logprobs=(-7.0,) * length,
        advantages=(numbers.choice((-1.0, 1.0)),) * length,
        versions=(-1, *(0,) * (length - 1)),
    )


async def measure(arguments: argparse.Namespace, folder: Path) -> list[dict[str, float]]:
    random_weights = not any(arguments.folder.glob("*.safetensors"))
    model_path = resolve_model(str(arguments.folder), folder, random_weights=random_weights)
    parameters = sum(math.prod(shape) for shape in read_architecture(model_path).hf_shapes().values())
    setup = TrainerSetup(
        model_path=str(model_path),
        trainer=TrainerConfig(
            procs=arguments.gpus,
            tensor_parallel=arguments.tensor_parallel,
            seq_len=arguments.seq_len,
            rows_per_microbatch=arguments.rows_per_microbatch,
            dtype="bfloat16",
            device="cuda",
            compile=True,
            gpus=tuple(range(arguments.gpus)),
            activation_checkpoint=arguments.activation_checkpoint,
        ),
        optimizer=OptimizerConfig(lr=1e-6, warmup_steps=0),
        loss=Grpo(),
        total_steps=100,
        folder=str(folder / "trainer"),
    )
    count = arguments.rows * arguments.seq_len // arguments.documents * arguments.gpus // arguments.tensor_parallel
    samples = [document(index, arguments.documents) for index in range(count)]
    rows: list[dict[str, float]] = []
    async with Runtime(log_dir=folder / "logs") as runtime:
        trainer = TrainerClient(setup, runtime=runtime)
        await trainer.start()
        for step in range(arguments.steps + 1):
            begin_s = time.perf_counter()
            metrics = await trainer.train_step(samples)
            step_s = time.perf_counter() - begin_s
            tokens = count * arguments.documents
            compute_s = metrics["train/time/train_compute_s"]
            peak = arguments.peak_tflops * 1e12 * arguments.gpus
            row = {
                "step_s": step_s,
                "compute_s": compute_s,
                "tokens_per_s": tokens / compute_s,
                "mfu": 6 * parameters * tokens / compute_s / peak,
                "mfu_with_transport": 6 * parameters * tokens / step_s / peak,
                "loss": metrics["train/loss"],
                "grad_norm": metrics["train/grad_norm"],
            }
            print(json.dumps({"step": step, **row}), flush=True)
            if step:
                rows.append(row)
        await trainer.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--documents", type=int, default=2048, help="tokens of each")
    parser.add_argument("--rows", type=int, default=4, help="of a step, on each data-parallel rank")
    parser.add_argument("--rows-per-microbatch", type=int, default=4)
    parser.add_argument("--activation-checkpoint", choices=("none", "selective", "full"), default="none")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--peak-tflops", type=float, default=790.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measure(arguments, Path(folder)))
    medians = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    print(f"\n| {' | '.join(medians)} |\n|{' --: |' * len(medians)}")
    print(f"| {' | '.join(f'{value:.4g}' for value in medians.values())} |")


if __name__ == "__main__":
    main()
