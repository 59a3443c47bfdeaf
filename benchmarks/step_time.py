"""Time per step of short training runs, here and in another checkout, taking turns.

    python benchmarks/step_time.py --compare ../before --rounds 3
    python benchmarks/step_time.py --set loop.max_staleness=0

Each run is `agentgym train --env code_exec` of this tree or the other, without its evaluation. The first steps are
left out: the first compiles, and waits for the first groups. Prints one line of JSON and a Markdown table of medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import trees

FIRST_STEPS = 2
SECONDS = ("time/step_s", "time/generate_s", "time/sandbox_s", "time/train_s", "time/publish_s")


def train(tree: Path, steps: int, words: list[str]) -> trees.Figures:
    """The medians of one run's steps, in seconds."""
    command = [sys.executable, "-m", "agentgym.cli.main", "train", "--env", "code_exec", "--plain"]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--runs-dir", folder, "--name", "run", "--loop.steps", str(steps), "--eval.at_end", "false"]
        done = subprocess.run(
            [*command, *words], env=trees.environment(tree), cwd=folder, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{tree}: {' '.join(command)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/step_s" in row][FIRST_STEPS:]
    return {key: statistics.median(row[key] for row in rows) for key in SECONDS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3, help="runs in each tree; medians are printed")
    parser.add_argument("--compare", type=Path, metavar="TREE", help="another checkout")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    arguments = parser.parse_args()
    if arguments.steps <= FIRST_STEPS:
        parser.error(f"--steps {arguments.steps}: the first {FIRST_STEPS} are left out, give more")
    words = [word for field in arguments.set for word in ("--set", field)]
    chosen = [trees.HERE, *([arguments.compare.resolve()] if arguments.compare else [])]
    measured = trees.take_turns(chosen, arguments.rounds, lambda tree: train(tree, arguments.steps, words))
    print(json.dumps({"steps": arguments.steps, **{str(tree): figures for tree, figures in measured.items()}}))
    print(trees.markdown(measured))


if __name__ == "__main__":
    main()
