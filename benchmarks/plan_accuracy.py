"""What was planned against what is measured here: memory, and the time of a step.

    python benchmarks/plan_accuracy.py                         with GPUs: the recipes that fit, one after another
    python benchmarks/plan_accuracy.py --only qwen3_0.6b --only smollm2_135m --tokens 512
    python benchmarks/plan_accuracy.py --cpu --steps 12        three set-ups of the tiny policy, on this CPU

For each set-up the rates are measured as by `agentgym plan --measure`, a step is predicted, and then the same recipe is
trained for --steps steps, of which the first two are left out. On GPUs the recipes of apps/grpo run with random weights
and the tiny policy's tokenizer, so that no hub is needed; a GPU's memory is the most that nvidia-smi shows, less what
was taken before. Needs an idle machine. Prints JSON for each set-up, then a Markdown table; ends with 1 when a step's
time or a GPU's memory is more than 15% away.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from qwen3_folder import write_folder

from agentgym.config import apply_overrides, to_mapping
from agentgym.hooks import PluginRegistry
from agentgym.jobs.layers import finish_recipe
from agentgym.jobs.measuring import measure_rates
from agentgym.jobs.places import wanted_of
from agentgym.jobs.recipe_files import EXTENDS, read_recipe_files
from agentgym.jobs.train import train
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model
from agentgym.planning.machine import this_machine
from agentgym.planning.placement import peak, place
from agentgym.planning.simulation import simulate
from agentgym.planning.splits import layout_of
from agentgym.recipe import Recipe
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import PlainReporter
from agentgym.yaml import read_yaml

APPS = Path(__file__).parents[1] / "apps" / "grpo"
LIMIT = 0.15
FIRST_STEPS = 2
QUIET = ["logging.sinks=[]", "logging.save_episodes=false", "eval.at_end=false", "loop.checkpoint_every=0"]
QUIET += ["loop.eval_every=0", "loop.check_sync_every=0"]
CPU_SETUPS = {
    "math, synchronous, 1 replica": ("math", ["loop.max_staleness=0", "generator.replicas=1"]),
    "math, asynchronous, 2 replicas": ("math", []),
    "tool_use, asynchronous, 1 replica": ("tool_use", ["generator.replicas=1"]),
}


def cpu_recipes(steps: int) -> Iterator[tuple[str, Recipe]]:
    for name, (file, more) in CPU_SETUPS.items():
        mapping, where = read_recipe_files([APPS / f"{file}.yaml"])
        yield name, finish_recipe(apply_overrides(mapping, [*QUIET, *more, f"loop.steps={steps}"]), where=where)[0]


def gpu_recipes(only: list[str], steps: int, tokens: int, scratch: Path) -> Iterator[tuple[str, Recipe]]:
    """With questions whose answers are drawn at random, and a reward for their length alone."""
    for path in sorted(APPS.glob("*.yaml")):
        if EXTENDS not in read_yaml(path) or (only and path.stem not in only):
            continue
        mapping, where = read_recipe_files([path])
        folder = scratch / path.stem
        write_folder(str(dict(mapping["model"])["path"]), folder)  # type: ignore[call-overload]
        more = [f"model={{path: '{folder}', random_weights: true}}", "env={name: math}", f"loop.steps={steps}"]
        more += ["rewards={'tailed_engine:short': 1.0}", "rollout.cut_turns=score", f"rollout.max_turn_tokens={tokens}"]
        more += [f"rollout.max_episode_tokens={tokens + 512}", "rollout.max_turns=1"]
        yield path.stem, finish_recipe(apply_overrides(mapping, [*QUIET, *more]), where=where)[0]


class Memory:
    """The most that each GPU has held since it was made, in GiB."""

    def __init__(self) -> None:
        self.before = self.read()
        self.most = list(self.before)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    @staticmethod
    def read() -> list[float]:
        command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return [float(line) / 1024 for line in done.stdout.split()]

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.most = [max(pair) for pair in zip(self.most, self.read(), strict=True)]

    def taken(self) -> list[float]:
        self._ended.set()
        self._thread.join()
        return [most - before for most, before in zip(self.most, self.before, strict=True)]


@contextmanager
def folder_of(recipe: Recipe, scratch: Path) -> Iterator[RunFolder]:
    with closing(RunFolder.create(scratch, "run", numbered=True)) as folder:
        folder.save_config(to_mapping(recipe))
        yield folder


def compare(name: str, recipe: Recipe, scratch: Path, *, gpus: bool) -> dict[str, object] | None:
    """None for a recipe that does not fit here."""
    reporter = PlainReporter(sys.stderr)
    registry = PluginRegistry.discover()
    random_weights = recipe.model.random_weights
    model = read_architecture(resolve_model(recipe.model.path, scratch / "model", random_weights=random_weights))
    wanted = wanted_of(recipe, model)
    placement = place(wanted, this_machine())
    if not placement.fits:
        print(f"{name}: {placement.problems[0]}", file=sys.stderr)
        return None
    measuring = scratch / f"measure-{name.replace(' ', '-')}"
    measuring.mkdir()
    rates = asyncio.run(measure_rates(recipe, measuring, reporter, registry))
    forecast = simulate(rates, recipe.loop, layout_of(wanted, placement), steps=24)
    watch = Memory() if gpus else None
    with folder_of(recipe, scratch) as folder:
        asyncio.run(train(recipe, folder, reporter))
        rows = [row.metrics for row in folder.read_metrics()][FIRST_STEPS:]
    taken = watch.taken() if watch else []
    estimated = [peak([seat for seat in placement.seats if seat.gpu == gpu]) for gpu in range(len(taken))]
    return {
        "set-up": name,
        "predicted_s": forecast.step_s,
        "measured_s": statistics.mean(row["time/step_s"] for row in rows),
        "steps_s": [row["time/step_s"] for row in rows],
        "estimated_gib": estimated,
        "taken_gib": taken,
        "rates": {key: value for key, value in to_mapping(rates).items() if key != "turns"},
    }


def away(planned: float, found: float) -> float:
    return planned / found - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--only", action="append", default=[], metavar="RECIPE")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512, help="of each sampled answer, on GPUs")
    arguments = parser.parse_args()
    if not arguments.cpu and not this_machine().gpus:
        parser.error("this machine has no GPU; --cpu measures three set-ups of the tiny policy")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
    lines, within = [], True
    with tempfile.TemporaryDirectory(prefix="plan-accuracy-") as folder:
        scratch = Path(folder)
        found = cpu_recipes(arguments.steps)
        if not arguments.cpu:
            found = gpu_recipes(arguments.only, arguments.steps, arguments.tokens, scratch)
        for name, recipe in found:
            row = compare(name, recipe, scratch, gpus=not arguments.cpu)
            if row is None:
                continue
            print(json.dumps(row), flush=True)
            off = away(row["predicted_s"], row["measured_s"])  # type: ignore[arg-type]
            pairs = [(e, t) for e, t in zip(row["estimated_gib"], row["taken_gib"], strict=True) if e]  # type: ignore[call-overload]
            memory = ", ".join(f"{e:.1f}/{t:.1f}" for e, t in pairs)
            within &= abs(off) <= LIMIT and all(abs(away(e, t)) <= LIMIT for e, t in pairs)
            lines.append(f"| {name} | {row['predicted_s']:.2f} | {row['measured_s']:.2f} | {off:+.0%} | {memory} |")
    print(
        "\n| set-up | step predicted, s | measured, s | off | GiB of each GPU, estimated/taken |\n|---|--:|--:|--:|---|"
    )
    print("\n".join(lines))
    return 0 if within and lines else 1


if __name__ == "__main__":
    sys.exit(main())
