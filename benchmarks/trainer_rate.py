"""Tokens a second and model FLOPs utilisation of a recipe's trainer, log-probability head and optimizer step included.

    python benchmarks/trainer_rate.py apps/grpo/qwen3_1.7b.yaml --set model.path=FOLDER
    python benchmarks/trainer_rate.py apps/grpo/qwen3_1.7b.yaml --gpus 2 --set model.path=FOLDER trainer.float8=rowwise
    python benchmarks/trainer_rate.py apps/grpo/qwen3_1.7b.yaml --arms ours torchtitan torchtitan-none \\
        --tokens 65536 --loss cross_entropy --lr 3e-4 --out OUT.jsonl --set model.path=FOLDER

The trainer is the recipe's own, with its defaults for the model and a GPU; --set changes a field. FOLDER: a model with
weights or, as benchmarks/qwen3_folder.py writes it, without: then they are random, drawn at each start (its --weights
draws them once). A step is --tokens on each GPU, in
documents of --documents tokens, where a token mostly follows from the one before, so that --loss cross_entropy falls.
MFU is 6 * parameters * tokens a second over --peak-tflops a GPU (790: dense bfloat16 of an H200 as measured). Prints
JSON for every step; medians leave out the first --skip, which compile. --out: a file that the whole is written to after
every step, so that one which is stopped has those that it did.

--arms: others than `ours` are TorchTitan's own trainer (benchmarks/torchtitan_alone.py) on the same rows, in the same
microbatches and precision, with compile as the recipe has it. Its loss is always its chunked cross-entropy, its weights
are its own random ones, and its CUDA graphs and tuned attention kernels are on. `torchtitan` computes again what its
mode nearest to the recipe's does: its `selective` for `elementwise`, which computes every second matrix product too.
`torchtitan-none` computes nothing again that its compiler does not, `torchtitan-budget` leaves it to the compiler, with
half of the memory. --torchtitan sets fields of its configuration, such as training.disable_cuda_graphs=true;
--no-autotune spares the minutes that tuning takes. Each arm is a process of its own, one after the other. --out is then
a file of JSON lines, whose arms are not repeated; beside it are each arm's steps and log. Then a Markdown table of the
medians, of the arms that ended where it was stopped or one failed; shares are by the fastest of TorchTitan. The
compute of ours is measured until the optimizer's kernels are queued, TorchTitan's until they have ended; whole steps
(`with packing and sending`) are until then in both, and TorchTitan's rows are made before the first step.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from finished_arms import HERE, Figures, FinishedArms, run_job, run_or_fail, stoppable
from trainer_arms import (
    NEAREST,
    OURS,
    TORCHTITAN,
    AloneRun,
    Batches,
    Rates,
    Row,
    flavor_of,
    medians_of,
    rows_alone,
    table,
)

from agentgym.actors.runtime import Runtime
from agentgym.config import apply_overrides, to_mapping
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rl.losses import Loss
from agentgym.rl.losses.cross_entropy import CrossEntropy
from agentgym.rl.losses.grpo import Grpo
from agentgym.run.layers import finish_recipe
from agentgym.run.recipe_files import read_recipe_files
from agentgym.trainer.client import TrainerClient
from agentgym.trainer.config import OptimizerConfig
from agentgym.trainer.setup import TrainerSetup

LOSSES: dict[str, type[Loss]] = {"grpo": Grpo, "cross_entropy": CrossEntropy}


def read_recipe(arguments: argparse.Namespace) -> Recipe:
    mapping, where = read_recipe_files([arguments.recipe])
    fields = [f"trainer.procs={arguments.gpus}", f"trainer.device={arguments.device}", *arguments.set]
    recipe, _ = finish_recipe(apply_overrides(mapping, fields), where=where)
    gpus = tuple(range(recipe.trainer.procs)) if arguments.device == "cuda" else ()
    return replace(recipe, trainer=replace(recipe.trainer, gpus=gpus))


def batches_of(arguments: argparse.Namespace, recipe: Recipe) -> Batches:
    ranks = recipe.trainer.data_ranks
    return Batches(
        count=arguments.tokens // arguments.documents * ranks,
        length=arguments.documents,
        seq_len=recipe.trainer.seq_len,
        rows_per_microbatch=recipe.trainer.rows_per_microbatch,
        ranks=ranks,
        repeated=arguments.loss != "cross_entropy",
    )


def rates_of(arguments: argparse.Namespace, recipe: Recipe, model_path: Path) -> Rates:
    return Rates(
        tokens=batches_of(arguments, recipe).tokens,
        parameters=read_architecture(model_path).num_parameters,
        peak=arguments.peak_tflops * 1e12 * arguments.gpus,
    )


async def measure(
    arguments: argparse.Namespace, recipe: Recipe, model_path: Path, folder: Path, rows: list[Row]
) -> None:
    """Adds a row for each step when it ends, and writes all of them to --out."""
    setup = TrainerSetup(
        model_path=str(model_path),
        trainer=recipe.trainer,
        optimizer=OptimizerConfig(lr=arguments.lr, warmup_steps=0),
        loss=LOSSES[arguments.loss](),
        total_steps=1000,
        folder=str(folder / "trainer"),
    )
    batches, rates = batches_of(arguments, recipe), rates_of(arguments, recipe, model_path)
    async with Runtime(log_dir=folder / "logs") as runtime, AsyncExitStack() as stack:
        trainer = TrainerClient(setup, runtime=runtime)
        stack.push_async_callback(trainer.close)
        await trainer.start()
        for step in range(arguments.steps + 1):
            samples = batches.samples(step)
            begin_s = time.perf_counter()
            metrics = await trainer.train_step(samples)
            row = rates.row(
                step_s=time.perf_counter() - begin_s,
                compute_s=metrics["train/time/train_compute_s"],
                peak_gib=metrics.get("train/gpu_peak_gib", 0.0),
                loss=metrics["train/loss"],
                grad_norm=metrics["train/grad_norm"],
            )
            print(json.dumps({"step": step, **row}), flush=True)
            rows.append(row)
            if arguments.out:
                found = {"trainer": to_mapping(recipe)["trainer"], "medians": medians_of(rows, arguments.skip)}
                arguments.out.write_text(json.dumps(found | {"steps": rows}, indent=1))


def measure_ours(arguments: argparse.Namespace, recipe: Recipe) -> None:
    given = Path(recipe.model.path)
    random_weights = given.is_dir() and not any(given.glob("*.safetensors"))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        model_path = resolve_model(recipe.model.path, Path(folder), random_weights=random_weights)
        try:
            run_job(measure(arguments, recipe, model_path, Path(folder), rows))
        finally:
            if medians := medians_of(rows, arguments.skip):
                print(f"\n| {' | '.join(medians)} |\n|{' --: |' * len(medians)}")
                print(f"| {' | '.join(f'{value:.4g}' for value in medians.values())} |")


def alone_run(arguments: argparse.Namespace, recipe: Recipe, arm: str, rows: Path) -> AloneRun:
    """Raises ValueError for what TorchTitan can't be given in the same shape."""
    trainer, batches = recipe.trainer, batches_of(arguments, recipe)
    other = trainer.lora.rank or trainer.float8 != "off" or trainer.updates_per_step > 1 or trainer.context_parallel > 1
    if other:
        raise ValueError(
            "the arms of TorchTitan train all weights once a step, by whole rows: leave out lora, float8, minibatches "
            "and context_parallel"
        )
    batches.microbatch  # noqa: B018  # it raises where there is none
    return AloneRun(
        flavor=flavor_of(read_architecture(Path(recipe.model.path))),
        model=recipe.model.path,
        batches=batches,
        steps=arguments.steps + 1,
        lr=arguments.lr,
        dtype=trainer.dtype,
        compile=trainer.compile,
        recompute=TORCHTITAN[arm] or NEAREST[trainer.activation_checkpoint],
        tensor_parallel=trainer.tensor_parallel,
        data_parallel_shard=trainer.data_parallel_shard,
        device=arguments.device,
        autotune=not arguments.no_autotune,
        fields=arguments.torchtitan,
        rows=str(rows),
    )


def arm_alone(arguments: argparse.Namespace, recipe: Recipe, arm: str, place: Path) -> Figures:
    run = alone_run(arguments, recipe, arm, place.with_suffix(f".{arm}.steps"))
    given = place.with_suffix(f".{arm}.json")
    run.write(given)
    Path(run.rows).unlink(missing_ok=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(arguments.gpus)]
    run_or_fail([*torchrun, str(HERE / "torchtitan_alone.py"), str(given)], place.with_suffix(f".{arm}.log"))
    rows = rows_alone(Path(run.rows), run, rates_of(arguments, recipe, Path(recipe.model.path)))
    found = {"loss": "cross_entropy", "recompute": run.recompute, "steps": rows}
    return found | {"medians": medians_of(rows, arguments.skip)}


def arm_of_ours(arguments: argparse.Namespace, recipe: Recipe, place: Path) -> Figures:
    out = place.with_suffix(f".{OURS}.json")
    words = [*sys.argv[1:], "--arms", OURS, "--out", str(out)]
    run_or_fail([sys.executable, __file__, *words], place.with_suffix(f".{OURS}.log"))
    found = json.loads(out.read_text())
    about = {"loss": arguments.loss, "recompute": recipe.trainer.activation_checkpoint}
    return about | {key: found[key] for key in ("steps", "medians")}


def beside(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Each arm in a process of its own. The exit code."""
    changing = {name: value for name, value in vars(arguments).items() if name not in ("arms", "out")}
    arms = FinishedArms(arguments.out, changing | {"trainer": to_mapping(recipe)["trainer"]})
    batches = batches_of(arguments, recipe)
    shape = f"rows of {batches.seq_len}, microbatches of {batches.microbatch}"
    how = f"{recipe.trainer.dtype}, compile {recipe.trainer.compile}"
    print(f"{arguments.gpus} x {arguments.device}: {batches.tokens} tokens a step, {shape}; {how}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.out or Path(folder) / "arms"
        try:
            for arm in arguments.arms:
                with arms.arm(arm) as figures:
                    if not figures and arm == OURS:
                        figures |= arm_of_ours(arguments, recipe, place)
                    elif not figures:
                        figures |= arm_alone(arguments, recipe, arm, place)
        finally:
            table(arms.found)
    return int(bool(arms.failed))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    parser.add_argument("--arms", nargs="+", choices=(OURS, *TORCHTITAN), default=[OURS])
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tokens", type=int, default=131_072, help="of a step, on each GPU")
    parser.add_argument("--documents", type=int, default=2048, help="tokens of each")
    parser.add_argument("--loss", choices=sorted(LOSSES), default="grpo")
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--steps", type=int, default=6, help="after one that is never counted")
    parser.add_argument("--skip", type=int, default=2, help="first steps, which are left out")
    parser.add_argument("--peak-tflops", type=float, default=790.0)
    parser.add_argument("--torchtitan", nargs="*", default=[], metavar="KEY=VALUE", help="a field of its configuration")
    parser.add_argument("--no-autotune", action="store_true", help="TorchTitan's attention as ours is compiled")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if not 1 <= arguments.skip <= arguments.steps:
        parser.error(
            f"--skip {arguments.skip}: of {arguments.steps + 1} steps leave out at least the first, and not all"
        )
    return arguments


def main() -> int:
    arguments = parsed()
    recipe = read_recipe(arguments)
    with stoppable():
        if arguments.arms == [OURS]:
            measure_ours(arguments, recipe)
            return 0
        try:
            for arm in arguments.arms:
                if arm != OURS:
                    alone_run(arguments, recipe, arm, Path())
        except ValueError as error:
            raise SystemExit(f"trainer_rate.py: {error}") from error
        return beside(arguments, recipe)


if __name__ == "__main__":
    sys.exit(main())
