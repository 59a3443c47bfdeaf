"""How near an asynchronous loop comes to its limit: the slower of generation alone and training alone.

    python benchmarks/loop_limit.py --steps 20                                    the shipped policy in code_exec
    python benchmarks/loop_limit.py apps/grpo/qwen3_1.7b.yaml apps/presets/gpus/two.yaml --random FOLDER --tokens 1024

A synchronous run measures both alone, since nothing else runs beside either: `time/generate_s` and `time/train_s` of
its steps. Asynchronous runs of the same recipe follow, with at most one, then three versions of staleness. The first
steps are left out: they compile, and wait for the first groups. --random: a model folder as benchmarks/qwen3_folder.py
writes it; its weights are random, lengths have a heavy tail (tailed_engine.py), and what is paid for is being short.
Prints JSON, then a Markdown table. Needs an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

FIRST_STEPS = 3
SYNCHRONOUS = 0
HERE = Path(__file__).parent
RANDOM = ["env={name: math}", "rewards={'tailed_engine:short': 1.0}", "rollout.cut_turns=score", "rollout.max_turns=1"]


def random_fields(folder: Path, tokens: int, engine: str) -> list[str]:
    """What makes a recipe one of random weights, and of completions with up to so many tokens."""
    lengths = [f"rollout.max_turn_tokens={tokens}", f"rollout.max_episode_tokens={tokens + 256}"]
    model = f"model={{path: '{folder}', random_weights: true}}"
    return [*RANDOM, *lengths, model, f"generator.engine.name=tailed_engine:{engine}"]


def rows_of(arguments: argparse.Namespace, staleness: int) -> list[dict[str, float]]:
    """The metrics of one run's steps, without the first ones."""
    command = [sys.executable, "-m", "agentgym.cli.main", "train", *arguments.recipes, "--plain", "--name", "run"]
    fields = [f"loop.steps={arguments.steps}", f"loop.max_staleness={staleness}", "eval.at_end=false"]
    if arguments.random:
        fields += random_fields(arguments.random, arguments.tokens, arguments.engine)
    fields += arguments.set
    fields += ["loop.checkpoint_every=0", "loop.check_sync_every=0", "logging.sinks=[]"]
    with tempfile.TemporaryDirectory() as folder:
        words = [*command, "--runs-dir", folder, *(word for field in fields for word in ("--set", field))]
        paths = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": paths}
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
        if done.returncode:
            raise SystemExit(f"{' '.join(words)} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if "time/step_s" in row][FIRST_STEPS:]


def mean(rows: list[dict[str, float]], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", help="as of `agentgym train`; the embedded defaults otherwise")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--random", type=Path, metavar="FOLDER", help="random weights, lengths with a heavy tail")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion, with --random")
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 3], help="of the asynchronous runs, at most")
    parser.add_argument("--engine", choices=("TailedVllm", "TailedNative"), default="TailedVllm", help="with --random")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a field of the recipe")
    arguments = parser.parse_args()
    if arguments.steps <= FIRST_STEPS:
        parser.error(f"--steps {arguments.steps}: the first {FIRST_STEPS} are left out, give more")
    found = {staleness: rows_of(arguments, staleness) for staleness in (SYNCHRONOUS, *arguments.staleness)}
    alone = {part: mean(found[SYNCHRONOUS], f"time/{part}_s") for part in ("generate", "train")}
    limit = max(alone.values())
    steps = {staleness: mean(rows, "time/step_s") for staleness, rows in found.items()}
    success = {staleness: mean(rows, "rollout/success_mean") for staleness, rows in found.items()}
    stale = {staleness: mean(rows, "loop/staleness_mean") for staleness, rows in found.items()}
    print(json.dumps({"alone_s": alone, "step_s": steps, "success": success, "staleness": stale}))
    print(f"generation alone {alone['generate']:.2f} s a step, training alone {alone['train']:.2f} s")
    print("\n| staleness at most | a step, s | by the slower alone | synchronous by it | success | mean staleness |")
    print("|--:|--:|--:|--:|--:|--:|")
    for staleness in found:
        step = steps[staleness]
        shares = f"{step / limit:.2f} | {steps[SYNCHRONOUS] / step:.2f}"
        print(f"| {staleness} | {step:.2f} | {shares} | {success[staleness]:.3f} | {stale[staleness]:.2f} |")


if __name__ == "__main__":
    main()
