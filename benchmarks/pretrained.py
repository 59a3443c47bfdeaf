"""A pretrained model learns by reinforcement on one GPU: SmolLM2 135M in tool_use or code_exec, three seeds, controls.

    python benchmarks/pretrained.py warm --gpus 0                 fine-tunes briefly: several lengths, one is chosen
    python benchmarks/pretrained.py warm --gpus 0 --warm-steps 22 one length, which is taken and not measured
    python benchmarks/pretrained.py train --gpus 0 1 --steps 100  the arms, side by side; each on one GPU
    python benchmarks/pretrained.py table                         what they reached, as Markdown
    python benchmarks/pretrained.py curve --picture FILE.png      how the success of their training went, as a picture
    python benchmarks/pretrained.py train --gpus 0 1 --engine vllm --per-run 2 --seeds 0 1 --controls coin --until 900
    python benchmarks/pretrained.py warm --task code_exec --runs-dir runs/code   and train so: functions in a sandbox

Arms: three seeds of the recipes apps/grpo/smollm2_135m.yaml and apps/presets/tasks/tool_use.yaml, one that is paid by a
coin toss, and of tool_use one whose tools answer nothing of use. Every arm starts from the same weights: those that
solve about --near of the held-out tasks, as few demonstrations leave them. `train --until S` stops what runs longer,
and measures what it has reached. --set gives more fields to every run (`--set model.path=FOLDER`). The runs are folders
as any others.

The control `synchronous` is seed 0 without staleness; --other-staleness has more arms of seed 0, so many versions stale
at most.

With --engine native all arms run side by side, and share GPUs. With --engine vllm --at-once arms share --per-run GPUs:
their trainers and generators are on one, or on one each, and --until is divided between the arms that follow one
another. Those that share a GPU need smaller parts of it, and vLLM must not measure what is free while others start:

    --set trainer.check_memory=false generator.engine.gpu_memory_utilization=0.15
    "generator.engine.options={kv_cache_memory_bytes: 8000000000}"

The table is printed where it is stopped, too; what was not measured by then is missing.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from finished_arms import end, stoppable
from success_curve import draw_success

ROOT = Path(__file__).parents[1]
TASKS = {
    "tool_use": ["env.options.levels=[1, 2]", "rollout.max_turn_tokens=96"],
    "code_exec": ["env.options.max_difficulty=2", "rollout.max_turn_tokens=160"],
}
"""By environment, whose preset is in apps/presets/tasks: fields of every run."""
COMMON = ["rollout.max_episode_tokens=768", "logging.sinks=[]"]
NATIVE = ["generator.engine={name: native}", "trainer.check_memory=false"]
GRACE_S = 60.0
SUCCESS = "rollout/success_mean"
COIN = '''"""A reward that says nothing."""

import hashlib


def coin(episode):
    """A fair coin that only the episode's number decides."""
    return float(hashlib.blake2b(f"coin/{episode.episode_id}".encode()).digest()[0] & 1)
'''


Gpus = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """words: of `agentgym`, but for the run's name and place."""

    name: str
    words: Sequence[str]

    @property
    def folder(self) -> str:
        return self.name.replace(" ", "-")


@dataclass(slots=True, kw_only=True)
class Running:
    """until: seconds of the clock; None while it saves, or is measured."""

    arm: Arm
    gpus: Gpus
    process: subprocess.Popen[bytes]
    until: float | None
    measured: bool = False


def start(words: Sequence[str], log: Path, gpus: Gpus) -> subprocess.Popen[bytes]:
    """One command line of the package, on some GPUs, in a session of its own."""
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, gpus))}
    command = [sys.executable, "-m", "agentgym.cli.main", *words, "--plain"]
    with log.open("ab") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)


def settings(arguments: argparse.Namespace, more: list[str]) -> list[str]:
    native = NATIVE if arguments.what == "warm" or arguments.engine == "native" else []
    return [
        word for field in [*TASKS[arguments.task], *COMMON, *native, *more, *arguments.set] for word in ("--set", field)
    ]


def preset(arguments: argparse.Namespace) -> Path:
    return ROOT / "apps" / "presets" / "tasks" / f"{arguments.task}.yaml"


def last_success(folder: Path) -> float | None:
    """Of the checkpoint that a run ended with, on its held-out tasks; None without one."""
    file = folder / "comparison.json"
    return float(json.loads(file.read_text())["last"]["success"]) if file.is_file() else None


def warm(arguments: argparse.Namespace) -> None:
    recipe = ROOT / "apps" / "sft" / "smollm2_135m.yaml"
    more = ["sft.oracle_tasks=4000", "sft.batch_size=64", "eval.tasks=128", "eval.samples_per_task=1"]
    more += [f"eval.at_end={'true' if len(arguments.warm_steps) > 1 else 'false'}"]  # one need not be chosen
    runs = []
    for index, steps in enumerate(arguments.warm_steps):
        name, gpu = f"warm-{steps}", arguments.gpus[index % len(arguments.gpus)]
        words = ["sft", str(recipe), str(preset(arguments)), *settings(arguments, [*more, f"sft.steps={steps}"])]
        words += ["--name", name, "--runs-dir", str(arguments.runs_dir)]
        runs.append(start(words, arguments.runs_dir / f"{name}.log", (gpu,)))
    try:
        report_warm(arguments, runs)
    finally:
        for run in runs:
            end(run, GRACE_S)


def report_warm(arguments: argparse.Namespace, runs: Sequence[subprocess.Popen[bytes]]) -> None:
    for steps, run in zip(arguments.warm_steps, runs, strict=True):
        code = run.wait()
        print(f"{steps} steps: exit code {code}, success {last_success(arguments.runs_dir / f'warm-{steps}')}")


def chosen_policy(arguments: argparse.Namespace) -> Path:
    """Of the warm starts that ended: the measured one that is nearest, or the only one."""
    last: dict[str, Path] = {}
    for folder in arguments.runs_dir.glob("warm-*"):
        checkpoint = folder / "checkpoints" / f"step-{folder.name.removeprefix('warm-'):0>6}"
        if checkpoint.is_dir():
            last[folder.name] = checkpoint
    found = {name: last_success(arguments.runs_dir / name) for name in last}
    measured = {name: success for name, success in found.items() if success is not None}
    if not measured and len(last) != 1:
        raise SystemExit(f"{arguments.runs_dir} has no measured warm start: run `pretrained.py warm` first")
    name = min(measured or last, key=lambda name: abs(measured.get(name, 0.0) - arguments.near))
    solves = f"solves {measured[name]:.3f}" if measured else "was not measured"
    print(f"every arm starts from {name}, which {solves}")
    return last[name]


def arms_of(arguments: argparse.Namespace, policy: Path) -> list[Arm]:
    coin = arguments.runs_dir / "coin.py"
    coin.write_text(COIN)
    recipes = [ROOT / "apps" / "grpo" / "smollm2_135m.yaml", preset(arguments)]
    if arguments.per_run == 2:
        recipes.append(ROOT / "apps" / "presets" / "gpus" / "two.yaml")
    lr = f"optimizer.lr={arguments.lr}"
    arms = {f"seed {seed}": ([lr], ["--seed", str(seed)]) for seed in arguments.seeds}
    if "coin" in arguments.controls:
        arms["coin"] = ([lr], ["--seed", "0", "--reward", f"{coin}:coin"])
    if "withheld" in arguments.controls:
        arms["replies withheld"] = ([lr, "env.options.withhold_replies=true"], ["--seed", "0"])
    if "synchronous" in arguments.controls:
        arms["synchronous"] = ([lr, "loop.max_staleness=0"], ["--seed", "0"])
    for bound in arguments.other_staleness:
        arms[f"staleness {bound}"] = ([lr, f"loop.max_staleness={bound}"], ["--seed", "0"])
    arms |= {f"rate {rate:g}": ([f"optimizer.lr={rate}"], ["--seed", "0"]) for rate in arguments.other_rates}
    steps = ["loop.eval_every=10", "loop.eval_tasks=64", f"loop.steps={arguments.steps}", "loop.checkpoint_every=20"]
    found = []
    for name, (fields, words) in arms.items():
        given = [f"model.path={policy}", *steps, "eval.tasks=128", "eval.samples_per_task=4", *fields]
        command = ["train", *map(str, recipes), *settings(arguments, given), *words, "--grace", f"{GRACE_S:g}"]
        found.append(Arm(name=name, words=command))
    return found


def train(arguments: argparse.Namespace) -> None:
    arms, runs = arms_of(arguments, chosen_policy(arguments)), arguments.runs_dir
    slots = [
        tuple(arguments.gpus[at : at + arguments.per_run]) for at in range(0, len(arguments.gpus), arguments.per_run)
    ]
    at_once = len(arms) if arguments.engine == "native" else arguments.at_once
    turns = math.ceil(len(arms) / len(slots) / at_once)

    def begin(arm: Arm, gpus: Gpus) -> subprocess.Popen[bytes]:
        return start([*arm.words, "--name", arm.folder, "--runs-dir", str(runs)], runs / f"{arm.folder}.log", gpus)

    def again(arm: Arm, gpus: Gpus) -> subprocess.Popen[bytes] | None:
        saved = sorted((runs / arm.folder / "checkpoints").glob("step-*"))
        done = int(saved[-1].name.removeprefix("step-")) if saved else 0
        how = "it is measured as it is" if done else "nothing is measured"
        print(f"{arm.name}: stopped after {done} steps; {how}", flush=True)
        words = ["train", "--resume", str(runs / arm.folder), "--loop.steps", str(done)]
        return start(words, runs / f"{arm.folder}.log", gpus) if done else None

    try:
        supervise(arms, slots, math.ceil(len(arms) / len(slots) / turns), arguments.until / turns, begin, again)
    finally:
        table(arguments)


def supervise(
    arms: Sequence[Arm],
    slots: Sequence[Gpus],
    at_once: int,
    seconds: float,
    begin: Callable[[Arm, Gpus], subprocess.Popen[bytes]],
    again: Callable[[Arm, Gpus], subprocess.Popen[bytes] | None],
) -> None:
    """Every slot has at_once arms, each for so many seconds; then it is asked to save, and `again` measures it.

    However this ends, no process is left.
    """
    waiting, running = list(arms), list[Running]()
    try:
        while waiting or running:
            for gpus in slots:
                while waiting and sum(run.gpus == gpus for run in running) < at_once:
                    arm = waiting.pop(0)
                    running.append(
                        Running(arm=arm, gpus=gpus, process=begin(arm, gpus), until=time.monotonic() + seconds)
                    )
            time.sleep(0.5)
            for run in list(running):
                step_of(run, running, again)
    finally:
        for run in running:
            end(run.process, GRACE_S)


def step_of(run: Running, running: list[Running], again: Callable[[Arm, Gpus], subprocess.Popen[bytes] | None]) -> None:
    """Stop it when its time is over, measure it when it has saved, forget it when it has ended."""
    if run.process.poll() is None:
        if run.until is not None and time.monotonic() >= run.until:
            run.process.terminate()  # it saves a checkpoint (--grace)
            run.until = None
        return
    end(run.process, GRACE_S)
    if run.until is None and not run.measured and (measuring := again(run.arm, run.gpus)) is not None:
        run.process, run.measured = measuring, True
        return
    running.remove(run)
    if run.process.returncode:
        print(f"{run.arm.name}: exit code {run.process.returncode}, see its log", flush=True)


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


def curve(arguments: argparse.Namespace) -> None:
    """Of the runs that were trained by reinforcement, whether or not they came to their end."""
    found: dict[str, list[float]] = {}
    for file in sorted(arguments.runs_dir.glob("*/metrics.jsonl")):
        rows = map(json.loads, file.read_text().splitlines())
        success = [row[SUCCESS] for row in rows if SUCCESS in row]
        if success:
            found[file.parent.name.replace("-", " ")] = success
    if not found:
        raise SystemExit(f"{arguments.runs_dir} has no run with steps: run `pretrained.py train` first")
    draw_success(found, arguments.picture, smooth=arguments.smooth)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("warm", "train", "table", "curve"))
    parser.add_argument("--task", choices=tuple(TASKS), default="tool_use")
    parser.add_argument("--runs-dir", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--gpus", type=int, nargs="+", default=[0])
    parser.add_argument("--warm-steps", type=int, nargs="+", default=[12, 16, 20], help="lengths of the fine-tuning")
    parser.add_argument("--near", type=float, default=0.4, help="success of the warm start that is taken")
    parser.add_argument("--engine", choices=("native", "vllm"), default="native", help="of `train`")
    parser.add_argument("--per-run", type=int, choices=(1, 2), default=1, help="GPUs of each arm; 2 with vllm alone")
    parser.add_argument("--at-once", type=int, default=1, help="arms on the same GPUs, with vllm")
    parser.add_argument(
        "--controls",
        nargs="*",
        choices=("coin", "withheld", "synchronous"),
        help="default: coin, and withheld of tool_use",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=3e-5)
    parser.add_argument("--other-rates", type=float, nargs="*", default=[], help="one more arm each, seed 0")
    parser.add_argument("--other-staleness", type=int, nargs="*", default=[], help="one more arm each, seed 0")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="that `curve` writes")
    parser.add_argument("--smooth", type=int, default=3, metavar="STEPS", help="that a point of `curve` is the mean of")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds after which training is stopped")
    parser.add_argument("--set", action="extend", nargs="+", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    if len(arguments.gpus) % arguments.per_run or (arguments.per_run == 2 and arguments.engine == "native"):
        parser.error(f"--per-run {arguments.per_run}: give --engine vllm, and as many --gpus or a multiple")
    if arguments.controls is None:
        arguments.controls = ["coin", "withheld"] if arguments.task == "tool_use" else ["coin"]
    if "withheld" in arguments.controls and arguments.task != "tool_use":
        parser.error("--controls withheld: what tools reply is withheld, and only tool_use has them")
    if arguments.what == "curve" and arguments.picture is None:
        parser.error("curve: give --picture, the file to write")
    arguments.runs_dir = arguments.runs_dir.resolve()
    arguments.runs_dir.mkdir(parents=True, exist_ok=True)
    with stoppable():
        {"warm": warm, "train": train, "table": table, "curve": curve}[arguments.what](arguments)


if __name__ == "__main__":
    main()
