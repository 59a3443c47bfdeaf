"""Tokens a second and model FLOPs utilisation of a recipe's trainer, log-probability head and optimizer step included.

    python benchmarks/trainer_rate.py apps/grpo/qwen3_1.7b.yaml --set model.path=FOLDER
    python benchmarks/trainer_rate.py apps/grpo/qwen3_1.7b.yaml --gpus 2 --set model.path=FOLDER trainer.float8=rowwise

The trainer is the recipe's own, with its defaults for the model and a GPU; --set changes a field. FOLDER: a model with
weights or, as benchmarks/qwen3_folder.py writes it, without: then they are random, drawn at each start (its --weights
draws them once). A step is --tokens on each GPU, in
documents of --documents tokens, where a token mostly follows from the one before, so that --loss cross_entropy falls.
MFU is 6 * parameters * tokens a second over --peak-tflops a GPU (790: dense bfloat16 of an H200 as measured). Prints
JSON for every step; medians leave out the first --skip, which compile. --out: a file that the whole is written to after
every step, so that one which is stopped has those that it did.
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
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from finished_arms import stoppable

from agentgym.actors.runtime import Runtime
from agentgym.config import apply_overrides, to_mapping
from agentgym.jobs.layers import finish_recipe
from agentgym.jobs.recipe_files import read_recipe_files
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rl.losses import Loss
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

WORDS = 1000
FOLLOWERS = random.Random(0).sample(range(WORDS), WORDS)
LOSSES: dict[str, type[Loss]] = {"grpo": Grpo, "cross_entropy": CrossEntropy}


def document(index: int, length: int) -> Sample:
    """Nine of ten tokens are the follower of the one before; all but the first are trained."""
    numbers = random.Random(index)
    tokens = [numbers.randrange(WORDS)]
    for _ in range(length - 1):
        tokens.append(FOLLOWERS[tokens[-1]] if numbers.random() < 0.9 else numbers.randrange(WORDS))
    return Sample(
        sample_id=f"document-{index}",
        token_ids=tuple(tokens),
        loss_mask=(0.0, *(1.0,) * (length - 1)),
        logprobs=(-7.0,) * length,
        advantages=(numbers.choice((-1.0, 1.0)),) * length,
        versions=(-1, *(0,) * (length - 1)),
    )


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    mapping, where = read_recipe_files([arguments.recipe])
    fields = [f"trainer.procs={arguments.gpus}", f"trainer.device={arguments.device}", *arguments.set]
    recipe, _ = finish_recipe(apply_overrides(mapping, fields), where=where)
    gpus = tuple(range(recipe.trainer.procs)) if arguments.device == "cuda" else ()
    return replace(recipe, trainer=replace(recipe.trainer, gpus=gpus))


async def measure(
    arguments: argparse.Namespace, recipe: Recipe, model_path: Path, folder: Path, rows: list[dict[str, float]]
) -> None:
    """Adds a row for each step when it ends, and writes all of them to --out."""
    parameters = sum(math.prod(shape) for shape in read_architecture(model_path).hf_shapes().values())
    setup = TrainerSetup(
        model_path=str(model_path),
        trainer=recipe.trainer,
        optimizer=OptimizerConfig(lr=arguments.lr, warmup_steps=0),
        loss=LOSSES[arguments.loss](),
        total_steps=1000,
        folder=str(folder / "trainer"),
    )
    each = arguments.tokens // arguments.documents * arguments.gpus // recipe.trainer.tensor_parallel
    tokens = each * arguments.documents
    peak = arguments.peak_tflops * 1e12 * arguments.gpus
    async with Runtime(log_dir=folder / "logs") as runtime, AsyncExitStack() as stack:
        trainer = TrainerClient(setup, runtime=runtime)
        stack.push_async_callback(trainer.close)
        await trainer.start()
        for step in range(arguments.steps + 1):
            first = step * each if arguments.loss == "cross_entropy" else 0
            samples = [document(first + index, arguments.documents) for index in range(each)]
            begin_s = time.perf_counter()
            metrics = await trainer.train_step(samples)
            step_s = time.perf_counter() - begin_s
            compute_s = metrics["train/time/train_compute_s"]
            row = {
                "step_s": step_s,
                "compute_s": compute_s,
                "tokens_per_s": tokens / compute_s,
                "mfu": 6 * parameters * tokens / compute_s / peak,
                "mfu_with_transport": 6 * parameters * tokens / step_s / peak,
                "peak_gib": metrics.get("train/gpu_peak_gib", 0.0),
                "loss": metrics["train/loss"],
                "grad_norm": metrics["train/grad_norm"],
            }
            print(json.dumps({"step": step, **row}), flush=True)
            rows.append(row)
            if arguments.out:
                found = {"trainer": to_mapping(recipe)["trainer"], "medians": medians_of(rows, arguments.skip)}
                arguments.out.write_text(json.dumps(found | {"steps": rows}, indent=1))


def medians_of(rows: list[dict[str, float]], skip: int) -> dict[str, float]:
    """Empty where no step counts."""
    counted = rows[skip:]
    return {key: statistics.median(row[key] for row in counted) for key in counted[0]} if counted else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=131_072, help="of a step, on each GPU")
    parser.add_argument("--documents", type=int, default=2048, help="tokens of each")
    parser.add_argument("--loss", choices=sorted(LOSSES), default="grpo")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--steps", type=int, default=6, help="after one that is never counted")
    parser.add_argument("--skip", type=int, default=2, help="first steps, which are left out")
    parser.add_argument("--peak-tflops", type=float, default=790.0)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    recipe = read_recipe(arguments)
    given = Path(recipe.model.path)
    random_weights = given.is_dir() and not any(given.glob("*.safetensors"))
    if not 1 <= arguments.skip <= arguments.steps:
        parser.error(
            f"--skip {arguments.skip}: of {arguments.steps + 1} steps leave out at least the first, and not all"
        )
    rows: list[dict[str, float]] = []
    with stoppable(), tempfile.TemporaryDirectory() as folder:
        model_path = resolve_model(recipe.model.path, Path(folder), random_weights=random_weights)
        try:
            asyncio.run(measure(arguments, recipe, model_path, Path(folder), rows))
        finally:
            if medians := medians_of(rows, arguments.skip):
                print(f"\n| {' | '.join(medians)} |\n|{' --: |' * len(medians)}")
                print(f"| {' | '.join(f'{value:.4g}' for value in medians.values())} |")


if __name__ == "__main__":
    main()
