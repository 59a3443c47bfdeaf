"""Seconds a step of a loop over services beside the built-in loop, on the same recipe, taking turns.

    python benchmarks/loop_overhead.py --rounds 3 --steps 14

The loop is apps/grpo/main.py, the recipe apps/grpo/math.yaml. A step's time is that between two lines of the run's
metrics; the first steps are left out, and medians over the steps of each round are compared. Seconds need an idle
machine; the shares of idle time are for a busy one too.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_STEPS = 3
COMMANDS = {
    "agentgym train": ["agentgym.cli.main", "train", "apps/grpo/math.yaml", "--plain"],
    "apps/grpo/main.py": ["apps.grpo.main", "--config", "apps/grpo/math.yaml"],
}
FIELDS = [
    "eval.tasks=2",
    "eval.samples_per_task=1",
    "eval.at_end=false",
    "loop.check_sync_every=0",
    "logging.sinks=[]",
    "loop.checkpoint_every=0",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Of one run, without its first steps. step_s: the median. idle: shares of the time in which nothing was trained,
    and nothing sampled; they say where a difference comes from, on a busy machine too."""

    step_s: float
    trainer_idle: float
    generators_idle: float


def pace(words: list[str], steps: int) -> Pace:
    with tempfile.TemporaryDirectory() as folder:
        fields = [*FIELDS, f"loop.steps={steps}", f"logging.runs_dir={folder}"]
        command = [sys.executable, "-m", *words, *(word for field in fields for word in ("--set", field))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        [run] = Path(folder).iterdir()
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if row["step"] >= FIRST_STEPS and "train/loss" in row]
    times = [row["time"] for row in rows]
    passed_s, train_s, generate_s = (
        math.fsum(row[f"time/{kind}_s"] for row in rows) for kind in ("step", "train", "generate")
    )
    return Pace(
        step_s=statistics.median(after - before for before, after in itertools.pairwise(times)),
        trainer_idle=1 - train_s / passed_s,
        generators_idle=1 - generate_s / passed_s,
    )


def table(found: dict[str, list[Pace]]) -> list[str]:
    """Markdown: medians over the rounds, and the ratio of the second to the first, paired by round."""
    lines = ["| loop | s a step | trainer idle | generators idle |", "|---|--:|--:|--:|"]
    for name, paces in found.items():
        step_s, trainer, generators = (
            statistics.median(getattr(one, field) for one in paces)
            for field in ("step_s", "trainer_idle", "generators_idle")
        )
        lines.append(f"| `{name}` | {step_s:.2f} | {trainer:.0%} | {generators:.0%} |")
    built_in, own = found.values()
    ratios = [math.log(b.step_s / a.step_s) for a, b in zip(built_in, own, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    last = f"| the second by the first, standard error | {math.exp(statistics.fmean(ratios)):.3f}, {error:.3f} | | |"
    return [*lines, last]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    arguments = parser.parse_args()
    found: dict[str, list[Pace]] = {name: [] for name in COMMANDS}
    for number in range(arguments.rounds):
        for name in list(COMMANDS)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(pace(COMMANDS[name], arguments.steps))
            print(json.dumps({"loop": name, **asdict(found[name][-1])}), flush=True)
    print("\n".join(["", *table(found)]))


if __name__ == "__main__":
    main()
