"""Tokens a second and model FLOPs utilisation of a recipe's trainer, log-probability head and optimizer step included.

    python benchmarks/trainer.py apps/grpo/qwen3_1.7b.yaml --set model.path=FOLDER
    python benchmarks/trainer.py apps/grpo/qwen3_1.7b.yaml --gpus 2 --set model.path=FOLDER trainer.float8=rowwise
    python benchmarks/trainer.py apps/grpo/qwen3_1.7b.yaml --loss cross_entropy --lr 3e-4 --out OUT.json

The trainer is the recipe's own, with its defaults for the model and a GPU; --set changes a field. FOLDER: a model with
weights or, as benchmarks/random_model.py writes it, without: then they are random, drawn at each start. A step is
--tokens on each GPU, in documents of --documents tokens, where a token mostly follows from the one before, so that
--loss cross_entropy falls; with another loss each step trains the same documents. MFU is 6 * parameters * tokens a
second over --peak-tflops a GPU (790: dense bfloat16 of an H200 as measured), of a mixture those of the experts that
compute a token; with trainer.router_replay=rollout its documents have random routes. peak_gib: of torch's allocator;
planned_gib: what the planner counts for it. Prints JSON for every step; medians leave out the first --skip, which
compile. --out: a file that the whole is written to after every step.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from agentgym.actors.runtime import Runtime
from agentgym.commands import run_until_stopped
from agentgym.config import apply_overrides, to_mapping
from agentgym.families.architecture import Architecture
from agentgym.models.resolve import resolve_model
from agentgym.planning.accumulation import sparing
from agentgym.planning.memory import trainer_parts
from agentgym.recipe import Recipe
from agentgym.rl.losses import Loss
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.routes import Routes
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files
from agentgym.trainer.choice import choose_engine
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig
from agentgym.trainer.mismatch_config import MismatchConfig
from agentgym.trainer.setup import TrainerSetup
from agentgym.types import Sample

LOSSES: dict[str, type[Loss]] = {"grpo": Grpo, "cross_entropy": CrossEntropy}
WORDS = 1000
FOLLOWERS = random.Random(0).sample(range(WORDS), WORDS)
Row = dict[str, float]


def random_routes(model: Architecture, index: int, length: int) -> Routes:
    """Different experts of each layer for each token."""
    experts = model.experts
    assert experts is not None, f"a {model.model_type} has no experts"
    drawn = np.random.default_rng(index).random((length, len(experts.layers), experts.num), dtype=np.float32)
    ids = drawn.argpartition(experts.top_k - 1)[..., : experts.top_k].astype("<u2")
    return Routes(width=len(experts.layers) * experts.top_k, ids=ids.tobytes())


def active_parameters(model: Architecture) -> float:
    """Those that one token meets."""
    experts = model.experts
    unused = 0.0 if experts is None else 1 - experts.top_k / experts.num
    of_experts = sum(math.prod(shape) for name, shape in model.hf_shapes().items() if ".experts." in name)
    return model.num_parameters - unused * of_experts


def document(index: int, length: int, routes: Routes | None = None) -> Sample:
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
        routes=routes,
    )


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    mapping, where = read_recipe_files([arguments.recipe])
    fields = [f"trainer.procs={arguments.gpus}", f"trainer.device={arguments.device}", *arguments.set]
    recipe, _ = finish_recipe(apply_overrides(mapping, fields), where=where)
    gpus = tuple(range(recipe.trainer.procs)) if arguments.device == "cuda" else ()
    # the documents' log-probabilities are nobody's
    return replace(recipe, trainer=replace(recipe.trainer, gpus=gpus, mismatch=MismatchConfig()))


def medians_of(rows: Sequence[Row], skip: int) -> Row:
    """Empty where no step counts."""
    counted = rows[skip:]
    return {key: statistics.median(row[key] for row in counted) for key in counted[0]} if counted else {}


def model_of(recipe: Recipe, folder: Path) -> Path:
    given = Path(recipe.model.path)
    return resolve_model(
        recipe.model.path, folder, random_weights=given.is_dir() and not any(given.glob("*.safetensors"))
    )


async def measure(
    arguments: argparse.Namespace, recipe: Recipe, model_path: Path, folder: Path, rows: list[Row]
) -> None:
    """Add a row for each step when it ends, and write all of them to --out."""
    setup = TrainerSetup(
        model_path=str(model_path),
        trainer=recipe.trainer,
        optimizer=OptimizerConfig(lr=arguments.lr, warmup_steps=0),
        loss=LOSSES[arguments.loss](),
        total_steps=1000,
        folder=str(folder / "trainer"),
        quantize=recipe.model.quantize,
    )
    count = arguments.tokens // arguments.documents * recipe.trainer.data_ranks
    tokens = count * arguments.documents
    peak = arguments.peak_tflops * 1e12 * arguments.gpus
    chosen, model = choose_engine(recipe.trainer, model_path, recipe.model.quantize)
    per_s = 6 * active_parameters(model) * tokens / peak  # MFU of a step that takes a second
    on_gpu, quantize = arguments.device == "cuda", recipe.model.quantize
    planned = trainer_parts(model, sparing(chosen), on_gpu=on_gpu, batch_tokens=tokens, quantize=quantize)
    planned_gib = sum(planned.values()) - planned["process"]
    print(json.dumps({"engine": chosen.engine, "parameters": model.num_parameters} | planned), flush=True)
    async with Runtime(log_dir=folder / "logs") as runtime, AsyncExitStack() as stack:
        trainer = TrainerClient(setup, runtime=runtime)
        stack.push_async_callback(trainer.close)
        await trainer.start()
        for step in range(arguments.steps + 1):
            first = step * count if arguments.loss == "cross_entropy" else 0
            numbers, length = range(first, first + count), arguments.documents
            replay = chosen.router_replay == "rollout"
            routes = [random_routes(model, index, length) if replay else None for index in numbers]
            samples = [document(index, length, one) for index, one in zip(numbers, routes, strict=True)]
            begin_s = time.perf_counter()
            metrics = await trainer.train_step(samples)
            step_s, compute_s = time.perf_counter() - begin_s, metrics["train/time/train_compute_s"]
            row = {
                "step_s": step_s,
                "compute_s": compute_s,
                "tokens_per_s": tokens / compute_s,
                "mfu": per_s / compute_s,
                "mfu_with_transport": per_s / step_s,
                "peak_gib": metrics.get("train/gpu_peak_gib", 0.0),
                "planned_gib": planned_gib,
                "loss": metrics["train/loss"],
                "grad_norm": metrics["train/grad_norm"],
            }
            print(json.dumps({"step": step, **row}), flush=True)
            rows.append(row)
            if arguments.out:
                found = {"trainer": to_mapping(recipe)["trainer"], "medians": medians_of(rows, arguments.skip)}
                arguments.out.write_text(json.dumps(found | {"steps": rows}, indent=1))


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
    if not 1 <= arguments.skip <= arguments.steps:
        parser.error(f"--skip {arguments.skip}: give at least 1, and at most --steps {arguments.steps}")
    rows: list[Row] = []
    recipe = read_recipe(arguments)
    with tempfile.TemporaryDirectory() as folder:
        job = measure(arguments, recipe, model_of(recipe, Path(folder)), Path(folder), rows)
        try:
            run_until_stopped(job, lambda line: print(line, file=sys.stderr))
        finally:
            if medians := medians_of(rows, arguments.skip):
                print(f"\n| {' | '.join(medians)} |\n|{' --: |' * len(medians)}")
                print(f"| {' | '.join(f'{value:.4g}' for value in medians.values())} |")


if __name__ == "__main__":
    main()
