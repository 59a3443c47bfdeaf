"""What was planned against what is measured here: memory, and the time of a step.

    python benchmarks/plan_accuracy.py                         with GPUs: the recipes that fit, one after another
    python benchmarks/plan_accuracy.py --only qwen3_0.6b --only smollm2_135m --tokens 512 --models DIR
    python benchmarks/plan_accuracy.py --only qwen3_1.7b --layer apps/presets/gpus/one_in_turns.yaml
    python benchmarks/plan_accuracy.py --cpu                   three set-ups of the tiny policy, on this CPU
    python benchmarks/plan_accuracy.py --cpu --only tool_use   one of them

For each set-up the rates are measured as by `agentgym plan --measure`, a step is predicted, and then the same recipe is
trained for --steps steps, without a checkpoint. The first --skip are left out, and the median of the others is
compared, since a trainer may compile again in a later one; the times of all steps are printed. On GPUs the recipes of
apps/grpo run with random weights and the tiny policy's tokenizer, so that no hub is needed; --models: a folder that
keeps these weights, which are then drawn once. A GPU's memory is the most that nvidia-smi shows of those that
CUDA_VISIBLE_DEVICES leaves, less what was taken before, and is compared with the plan's peak: phases that follow one
another are not added up.

Needs an idle machine. Prints JSON when a set-up ends and keeps it in --out, whose set-ups are not repeated; then a
Markdown table, of those that ended where it was stopped or one failed. Ends with 1 when one failed, or a step's time or
a GPU's memory is more than 15% away.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from finished_arms import HERE, Figures, FinishedArms, run_job, stoppable, with_paths
from gpu_sampler import GpuSampler
from loop_phases import Phase, train_in_phases
from qwen3_folder import write_folder

from agentgym.config import apply_overrides, to_mapping
from agentgym.hooks import PluginRegistry
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.planning.machine import this_machine
from agentgym.planning.placement import Placement, Wanted, peak, place
from agentgym.planning.simulation import simulate
from agentgym.planning.splits import layout_of
from agentgym.recipe import Recipe
from agentgym.run.layers import finish_recipe
from agentgym.run.measuring import measure_rates
from agentgym.run.places import wanted_of
from agentgym.run.recipe_files import EXTENDS, read_recipe_files
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import PlainReporter
from agentgym.yaml import read_yaml

APPS = HERE.parent / "apps" / "grpo"
LIMIT = 0.15
QUIET = ["logging.sinks=[]", "logging.save_episodes=false", "eval.at_end=false", "loop.checkpoint_every=0"]
QUIET += ["loop.eval_every=0", "loop.check_sync_every=0"]
CPU_SETUPS = {
    "math, synchronous, 1 replica": ("math", ["loop.max_staleness=0", "generator.replicas=1"]),
    "math, asynchronous, 2 replicas": ("math", []),
    "tool_use, asynchronous, 1 replica": ("tool_use", ["generator.replicas=1"]),
}


def cpu_recipes(only: list[str], steps: int) -> Iterator[tuple[str, Recipe]]:
    for name, (file, more) in CPU_SETUPS.items():
        if only and not any(name.startswith(words) for words in only):
            continue
        mapping, where = read_recipe_files([APPS / f"{file}.yaml"])
        yield name, finish_recipe(apply_overrides(mapping, [*QUIET, *more, f"loop.steps={steps}"]), where=where)[0]


def gpu_recipes(
    only: list[str], layers: list[Path], steps: int, tokens: int, models: Path
) -> Iterator[tuple[str, Recipe]]:
    """With questions whose answers are drawn at random, and a reward for their length alone."""
    for path in sorted(APPS.glob("*.yaml")):
        if EXTENDS not in read_yaml(path) or (only and path.stem not in only):
            continue
        mapping, where = read_recipe_files([path, *layers])
        folder = models / path.stem
        released = str(dict(mapping["model"])["path"])  # type: ignore[call-overload]
        write_folder(released, folder)
        more = [f"model={{path: '{folder}', random_weights: true}}", "env={name: math}", f"loop.steps={steps}"]
        more += ["rewards={'tailed_engine:short': 1.0}", "rollout.cut_turns=score", f"rollout.max_turn_tokens={tokens}"]
        more += [f"rollout.max_episode_tokens={tokens + 512}", "rollout.max_turns=1"]
        recipe = finish_recipe(apply_overrides(mapping, [*QUIET, *more]), where=where)[0]
        if placed(recipe, folder)[1].fits:
            write_folder(released, folder, weights=True)
            recipe = replace(recipe, model=replace(recipe.model, random_weights=False))
        yield ", ".join([path.stem, *(layer.stem for layer in layers)]), recipe


def placed(recipe: Recipe, model: Path) -> tuple[Wanted, Placement]:
    """On this machine."""
    wanted = wanted_of(recipe, read_architecture(model))
    return wanted, place(wanted, this_machine())


@contextmanager
def folder_of(recipe: Recipe, scratch: Path) -> Iterator[RunFolder]:
    with closing(RunFolder.create(scratch, "run", numbered=True)) as folder:
        folder.save_config(to_mapping(recipe))
        try:
            yield folder
        finally:
            shutil.rmtree(folder.path)


class DoesNotFit(Exception):
    """The recipe needs more than this machine has."""


def compare(name: str, recipe: Recipe, scratch: Path, *, gpus: bool, skip: int) -> Figures:
    """Raises DoesNotFit."""
    reporter = PlainReporter(sys.stderr)
    registry = PluginRegistry.discover()
    wanted, placement = placed(recipe, resolve_model(recipe.model.path, scratch))
    if not placement.fits:
        raise DoesNotFit(placement.problems[0])
    measuring = scratch / f"measure-{name.replace(' ', '-')}"
    measuring.mkdir()
    rates = run_job(measure_rates(recipe, measuring, reporter, registry))
    phase = Phase(max_staleness=recipe.loop.max_staleness, steps=recipe.loop.steps)
    forecast = simulate(rates, recipe.loop, layout_of(wanted, placement), steps=24)
    used = sorted({seat.gpu for seat in placement.seats if seat.gpu is not None})
    sampler = GpuSampler(used) if gpus else None
    try:
        with folder_of(recipe, scratch) as folder:
            run_job(train_in_phases(recipe, folder, reporter, [phase]))
            rows = [row.metrics for row in folder.read_metrics()]
    finally:
        if sampler is not None:
            sampler.close()
    return {
        "predicted_s": forecast.step_s,
        "measured_s": statistics.median(row["time/step_s"] for row in rows[skip:]),
        "steps_s": [row["time/step_s"] for row in rows],
        "trains_s": [row["time/train_s"] for row in rows],
        "gpus": used,
        "estimated_gib": [peak([seat for seat in placement.seats if seat.gpu == gpu]) for gpu in used if gpus],
        "taken_gib": sampler.taken_gib() if sampler else [],
        "rates": {key: value for key, value in to_mapping(rates).items() if key != "turns"},
    }


def table(found: dict[str, Figures]) -> bool:
    """Whether every prediction is near enough."""
    within = bool(found)
    print("\n| set-up | step predicted, s | measured, s | off | GiB of each GPU, estimated/taken |")
    print("|---|--:|--:|--:|---|")
    for name, row in found.items():
        off = away(row["predicted_s"], row["measured_s"])
        pairs = list(zip(row["estimated_gib"], row["taken_gib"], strict=True))
        memory = ", ".join(f"{estimated:.1f}/{taken:.1f}" for estimated, taken in pairs)
        within &= abs(off) <= LIMIT and all(
            taken and abs(away(estimated, taken)) <= LIMIT for estimated, taken in pairs
        )
        print(f"| {name} | {row['predicted_s']:.2f} | {row['measured_s']:.2f} | {off:+.0%} | {memory} |")
    return within


def away(planned: float, found: float) -> float:
    return planned / found - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument(
        "--only", action="append", default=[], metavar="RECIPE", help="on a CPU: what a set-up's name begins with"
    )
    parser.add_argument(
        "--layer", action="append", default=[], type=Path, metavar="FILE", help="read after each recipe, on GPUs"
    )
    parser.add_argument("--steps", type=int, default=14)
    parser.add_argument("--skip", type=int, default=6, help="first steps, which are left out")
    parser.add_argument("--models", type=Path, metavar="DIR", help="keeps the random weights, on GPUs")
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines: set-ups that it has are not repeated")
    parser.add_argument("--tokens", type=int, default=512, help="of each sampled answer, on GPUs")
    arguments = parser.parse_args()
    if not arguments.cpu and not this_machine().gpus:
        parser.error("this machine has no GPU; --cpu measures three set-ups of the tiny policy")
    if arguments.steps < arguments.skip + 6:
        parser.error(f"--steps {arguments.steps}: give at least 6 more than the first {arguments.skip}, left out")
    os.environ["PYTHONPATH"] = with_paths()["PYTHONPATH"]
    settings = {name: getattr(arguments, name) for name in ("cpu", "steps", "skip", "tokens")}
    arms, within = FinishedArms(arguments.out, settings), False
    with stoppable(), tempfile.TemporaryDirectory(prefix="plan-accuracy-") as folder:
        scratch = Path(folder)
        found = cpu_recipes(arguments.only, arguments.steps)
        if not arguments.cpu:
            found = gpu_recipes(
                arguments.only, arguments.layer, arguments.steps, arguments.tokens, arguments.models or scratch
            )
        try:
            for name, recipe in found:
                with arms.arm(name) as figures:
                    if not figures:
                        figures |= compare(name, recipe, scratch, gpus=not arguments.cpu, skip=arguments.skip)
        finally:
            within = table(arms.found)
    failed = any(not said.startswith(DoesNotFit.__name__) for said in arms.failed.values())
    return 0 if within and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
