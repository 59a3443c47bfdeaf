"""Seconds a step of a loop over services beside the built-in loop, on the same recipe, taking turns.

    python benchmarks/loop_overhead.py --rounds 3 --steps 14

The loop is apps/grpo/main.py, the recipe apps/grpo/math.yaml. A step's time is that between two lines of the run's
metrics; the first steps are left out, and medians over the steps of each round are compared. Needs an idle machine.
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
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST_STEPS = 3
COMMANDS = {
    "agentgym train": ["agentgym.cli.main", "train", "apps/grpo/math.yaml", "--plain", "--loop.checkpoint_every", "0"],
    "apps/grpo/main.py": ["apps.grpo.main", "--config", "apps/grpo/math.yaml"],
}
FIELDS = ["eval.tasks=2", "eval.samples_per_task=1", "eval.at_end=false", "loop.check_sync_every=0", "logging.sinks=[]"]


def step_s(words: list[str], steps: int) -> float:
    """The median of one run."""
    with tempfile.TemporaryDirectory() as folder:
        fields = [*FIELDS, f"loop.steps={steps}", f"logging.runs_dir={folder}"]
        command = [sys.executable, "-m", *words, *(word for field in fields for word in ("--set", field))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        [run] = Path(folder).iterdir()
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    times = [row["time"] for row in rows if row["step"] >= FIRST_STEPS and "train/loss" in row]
    middle: float = statistics.median(after - before for before, after in itertools.pairwise(times))
    return middle


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=14)
    arguments = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for number in range(arguments.rounds):
        for name in list(COMMANDS)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(step_s(COMMANDS[name], arguments.steps))
            print(json.dumps({"loop": name, "step_s": found[name][-1]}), flush=True)
    built_in, own = found.values()
    ratios = [math.log(b / a) for a, b in zip(built_in, own, strict=True)]
    error = statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
    for name, values in found.items():
        print(f"{name}: {statistics.median(values):.3f} s a step")
    print(f"the second by the first: {math.exp(statistics.fmean(ratios)):.3f}, standard error {error:.3f}")


if __name__ == "__main__":
    main()
