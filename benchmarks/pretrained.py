"""A pretrained model learns by reinforcement on one GPU: SmolLM2 135M in tool_use, three seeds and two controls.

    python benchmarks/pretrained.py warm --gpus 0                 fine-tunes briefly: several lengths, one is chosen
    python benchmarks/pretrained.py train --gpus 0 1 --steps 100  the arms, side by side; each on one GPU
    python benchmarks/pretrained.py table                         what they reached, as Markdown

Arms: three seeds of the recipes apps/grpo/smollm2_135m.yaml and apps/presets/tasks/tool_use.yaml, one that is paid by a
coin toss, one whose tools answer nothing of use. Every arm starts from the same weights: those that solve about --near
of the held-out tasks, as few demonstrations leave them. `train --until S` stops what runs longer, and measures what it
has reached. --set gives more fields to every run (`--set model.path=FOLDER`). The runs are folders as any others.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
TASK = ROOT / "apps" / "presets" / "tasks" / "tool_use.yaml"
COMMON = ["env.options.levels=[1, 2]", "rollout.max_turn_tokens=96", "rollout.max_episode_tokens=768"]
COMMON += ["logging.sinks=[]", "generator.engine={name: native}", "trainer.check_memory=false"]
COIN = '''"""A reward that says nothing."""

import hashlib


def coin(episode):
    """A fair coin that only the episode's number decides."""
    return float(hashlib.blake2b(f"coin/{episode.episode_id}".encode()).digest()[0] & 1)
'''


def start(command: list[str], name: str, gpu: int, runs: Path) -> subprocess.Popen[bytes]:
    """One command line of the package, on one GPU, with its output beside its run folder."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}
    words = [sys.executable, "-m", "agentgym.cli.main", *command, "--name", name, "--runs-dir", str(runs), "--plain"]
    with (runs / f"{name}.log").open("ab") as log:
        return subprocess.Popen(words, env=environment, stdout=log, stderr=subprocess.STDOUT)


def settings(arguments: argparse.Namespace, more: list[str]) -> list[str]:
    return [word for field in [*COMMON, *more, *arguments.set] for word in ("--set", field)]


def last_success(folder: Path) -> float | None:
    """Of the checkpoint that a run ended with, on its held-out tasks; None without one."""
    file = folder / "comparison.json"
    return float(json.loads(file.read_text())["last"]["success"]) if file.is_file() else None


def warm(arguments: argparse.Namespace) -> None:
    recipe = ROOT / "apps" / "sft" / "smollm2_135m.yaml"
    more = ["sft.oracle_tasks=4000", "sft.batch_size=64", "eval.tasks=128", "eval.samples_per_task=1"]
    runs = [
        start(
            ["sft", str(recipe), str(TASK), *settings(arguments, [*more, f"sft.steps={steps}"])],
            f"warm-{steps}",
            arguments.gpus[index % len(arguments.gpus)],
            arguments.runs_dir,
        )
        for index, steps in enumerate(arguments.warm_steps)
    ]
    for steps, run in zip(arguments.warm_steps, runs, strict=True):
        code = run.wait()
        print(f"{steps} steps: exit code {code}, success {last_success(arguments.runs_dir / f'warm-{steps}')}")


def chosen_policy(arguments: argparse.Namespace) -> Path:
    found = {folder: last_success(folder) for folder in arguments.runs_dir.glob("warm-*") if folder.is_dir()}
    measured = {folder: success for folder, success in found.items() if success is not None}
    if not measured:
        raise SystemExit(f"{arguments.runs_dir} has no measured warm start: run `pretrained.py warm` first")
    folder = min(measured, key=lambda folder: abs(measured[folder] - arguments.near))
    print(f"every arm starts from {folder.name}, which solves {measured[folder]:.3f}")
    newest: Path = sorted((folder / "checkpoints").glob("step-*"))[-1]
    return newest


def train(arguments: argparse.Namespace) -> None:
    policy = chosen_policy(arguments)
    coin = arguments.runs_dir / "coin.py"
    coin.write_text(COIN)
    recipe = ROOT / "apps" / "grpo" / "smollm2_135m.yaml"
    lr = f"optimizer.lr={arguments.lr}"
    arms = {f"seed {seed}": ([lr], ["--seed", str(seed)]) for seed in arguments.seeds}
    arms["coin"] = ([lr], ["--seed", "0", "--reward", f"{coin}:coin"])
    arms["replies withheld"] = ([lr, "env.options.withhold_replies=true"], ["--seed", "0"])
    arms |= {f"rate {rate:g}": ([f"optimizer.lr={rate}"], ["--seed", "0"]) for rate in arguments.other_rates}
    steps = ["loop.eval_every=10", "loop.eval_tasks=64", f"loop.steps={arguments.steps}", "loop.checkpoint_every=20"]
    began, running = time.monotonic(), {}
    for index, (arm, (fields, words)) in enumerate(arms.items()):
        given = [f"model.path={policy}", *steps, "eval.tasks=128", "eval.samples_per_task=4", *fields]
        command = ["train", str(recipe), str(TASK), *settings(arguments, given), *words, "--grace", "60"]
        gpu = arguments.gpus[index % len(arguments.gpus)]
        running[arm] = start(command, arm.replace(" ", "-"), gpu, arguments.runs_dir), gpu
    left = dict(running)
    while left and time.monotonic() - began < arguments.until:
        left = {arm: run for arm, run in left.items() if run[0].poll() is None}
        time.sleep(1)
    for process, _ in left.values():
        process.terminate()  # it saves a checkpoint (--grace)
    for arm, (process, gpu) in left.items():
        process.wait()
        name = arm.replace(" ", "-")
        done = int(sorted((arguments.runs_dir / name / "checkpoints").glob("step-*"))[-1].name.removeprefix("step-"))
        print(f"{arm}: stopped after {done} steps; it is measured as it is")
        resumed = [sys.executable, "-m", "agentgym.cli.main", "train", "--resume", str(arguments.runs_dir / name)]
        with (arguments.runs_dir / f"{name}.log").open("ab") as log:
            left[arm] = (
                subprocess.Popen(
                    [*resumed, "--loop.steps", str(done), "--plain"],
                    env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
                    stdout=log,
                    stderr=subprocess.STDOUT,
                ),
                gpu,
            )
    for process, _ in left.values():
        process.wait()
    table(arguments)


def table(arguments: argparse.Namespace) -> None:
    print("| arm | steps | success before | after | difference, 95% interval | held-out curve |")
    print("|---|--:|---|---|---|---|")
    for file in sorted(arguments.runs_dir.glob("*/comparison.json")):
        found = json.loads(file.read_text())
        first, last, difference = found["first"], found["last"], found["difference"]
        rows = [json.loads(line) for line in (file.parent / "metrics.jsonl").read_text().splitlines()]
        curve = [row["eval/success"] for row in rows if "eval/success" in row]
        ends = [f"{one['success']:.3f} [{one['low']:.3f}, {one['high']:.3f}]" for one in (first, last)]
        change = f"{difference['mean']:+.3f} [{difference['low']:+.3f}, {difference['high']:+.3f}]"
        held_out = " ".join(f"{value:.2f}" for value in curve)
        print(f"| {file.parent.name} | {found['steps']} | {ends[0]} | {ends[1]} | {change} | {held_out} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("warm", "train", "table"))
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--gpus", type=int, nargs="+", default=[0])
    parser.add_argument("--warm-steps", type=int, nargs="+", default=[12, 16, 20], help="lengths of the fine-tuning")
    parser.add_argument("--near", type=float, default=0.4, help="success of the warm start that is taken")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--other-rates", type=float, nargs="*", default=[], help="one more arm each, seed 0")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds after which training is stopped")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    arguments.runs_dir = arguments.runs_dir.resolve()
    arguments.runs_dir.mkdir(parents=True, exist_ok=True)
    {"warm": warm, "train": train, "table": table}[arguments.what](arguments)


if __name__ == "__main__":
    main()
