"""A long run of tiny steps, and what it takes over time: memory, descriptors, threads, shared memory, disk.

    python benchmarks/soak.py --steps 2000
    python benchmarks/soak.py --steps 300 --set loop.checkpoint_every=0 --keep soak-run

It starts `agentgym train` as a user would, with an environment of this file that runs code in the sandbox and pays a
coin toss, so that every step trains. Samples are taken from outside, once every `--every` steps. The exit code is 1
when something grows: memory by more than `--allow` KiB a step, anything else by anything at all. What a run is
meant to collect (episodes, metrics, logs) is shown apart, in bytes a step.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from agentgym import Environment, Reply, Task, reward
from agentgym.sandbox import CallCase, GradeRequest
from agentgym.types import SandboxSpec

MARKS = {"agentgym.rollout.worker": "reward workers", "monty": "monty"}  # in the command line of a process
COLLECTED = ("episodes", "evals", "metrics.jsonl", "events.log", "logs", "tensorboard")  # by design, with every step
SETTINGS = {
    "loop.groups_per_step": 2,
    "loop.group_size": 4,
    "loop.checkpoint_every": 20,
    "loop.keep_checkpoints": 3,
    "loop.check_sync_every": 10,
    "loop.eval_every": 50,
    "loop.eval_tasks": 4,
    "eval.tasks": 4,
    "rollout.max_turn_tokens": 8,
    "rollout.cut_turns": "score",
    "generator.replicas": 1,
    "sandbox.name": "monty",
}


class Toss(Environment[None]):
    """Anything may be said; a program runs, and a coin decides."""

    def tasks(self, split: str, seed: int = 0) -> Iterator[Task]:
        for number in itertools.count(seed) if split == "train" else range(64):
            prompt = {"role": "user", "content": f"Say something about {number % 1000}."}
            spec = SandboxSpec(allow_interpreters=("monty",))
            yield Task(task_id=f"{split}/{number}", prompt=(prompt,), answer=number, sandbox=spec)  # type: ignore[arg-type]

    async def reply(self, context) -> Reply:  # type: ignore[no-untyped-def]
        case = CallCase(args=(context.turn,), expected=context.turn + 1)
        code = f"def f(x):\n    return x + 1  # {context.seed}"
        verdict = await context.sandbox.grade(GradeRequest(code=code, entry="f", cases=(case,)))
        context.info["success"] = all(result.passed for result in verdict.results)
        return Reply(done=True)

    @reward
    def heads(self, episode) -> float:  # type: ignore[no-untyped-def]
        """In a process of its own, as a plain reward is."""
        return float(episode.seed % 2)


@dataclass
class Series:
    """One figure over the steps."""

    steps: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def slope(self) -> float:
        """A step's growth over the last two thirds: the median slope (Theil and Sen), which no single jump moves."""
        begin = len(self.steps) // 3
        points = list(zip(self.steps[begin:], self.values[begin:], strict=True))
        slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in itertools.combinations(points, 2) if x1 > x0]
        return statistics.median(slopes) if slopes else 0.0

    def halves(self) -> tuple[float, float]:
        """The median of the first half and of the second: a file that is open for a moment is no growth."""
        half = max(1, len(self.values) // 2)
        return statistics.median(self.values[:half]), statistics.median(self.values[half:] or self.values)


def role(process: psutil.Process, root: int) -> str:
    """What a process of the run is for, as `generator0` or `trainer`."""
    if process.pid == root:
        return "controller"
    command = process.cmdline()
    if "--name" in command:
        return command[command.index("--name") + 1].partition("#")[0]
    return next((name for mark, name in MARKS.items() if mark in " ".join(command)), process.name())


def sample(root: psutil.Process, run: Path) -> dict[str, float]:
    """Every figure now: `memory KiB/<role>`, `descriptors/<role>`, `threads/<role>`, `processes`, bytes."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error), process.oneshot():
            name = role(process, root.pid)
            found[f"memory KiB/{name}"] += process.memory_info().rss / 1024
            found[f"descriptors/{name}"] += process.num_fds()
            found[f"threads/{name}"] += process.num_threads()
            found["processes"] += 1
    found["shared memory, bytes"] = sum(map(size, Path("/dev/shm").glob(f"agentgym-*-{root.pid}")))
    for entry in run.iterdir():
        found["collected, bytes" if entry.name in COLLECTED else "kept, bytes"] += size(entry)
    return dict(found)


def size(path: Path) -> int:
    """Of a file, or of all in a folder; what vanishes meanwhile is nothing."""
    total = 0
    for one in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            total += one.stat().st_size if one.is_file() else 0
    return total


def steps_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def watch(command: list[str], run: Path, every: int) -> tuple[dict[str, Series], int, float]:
    """Run the command to its end. Returns the figures over the steps, the exit code, and seconds a step."""
    found: defaultdict[str, Series] = defaultdict(Series)
    log_path = run.parent / "output.log"
    with log_path.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as started:
        root = psutil.Process(started.pid)
        first_s, first, done, wanted = time.monotonic(), 0, 0, every
        try:
            while started.poll() is None:
                done = steps_done(run)
                if done and not first:
                    first_s, first = time.monotonic(), done
                if done >= wanted:
                    wanted = done + every
                    figures = sample(root, run)
                    for name, value in figures.items():
                        found[name].steps.append(done)
                        found[name].values.append(value)
                    own = {k.partition("/")[2]: v for k, v in figures.items() if k.startswith("memory KiB/")}
                    memory = "  ".join(f"{name} {kib / 1024:.1f}" for name, kib in sorted(own.items()))
                    print(f"step {done:6d}  MiB: {memory}", flush=True)
                time.sleep(0.05)
        finally:
            started.terminate()
    if started.returncode:
        print("".join(log_path.read_text().splitlines(keepends=True)[-15:]), file=sys.stderr)
    return dict(found), started.returncode, (time.monotonic() - first_s) / max(1, done - first)


def verdicts(found: dict[str, Series], allow_kib: float) -> Iterator[tuple[str, str, str, str, bool]]:
    """Name, at first, at last, growth, and whether that is too much."""
    for name, series in sorted(found.items()):
        first, last = (f"{value:,.0f}" for value in (series.values[0], series.values[-1]))
        if name.startswith("memory"):
            slope = series.slope()
            yield name, first, last, f"{slope:+.2f} KiB a step", slope > allow_kib
        elif name.startswith("collected"):
            yield name, first, last, f"{series.slope():+,.0f} bytes a step, as meant", False
        else:
            before, after = series.halves()
            yield name, first, last, f"{after - before:+,.0f} from half to half", after > before * 1.02 + 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=0, help="steps between samples (default: a fiftieth of all)")
    parser.add_argument("--allow", type=float, default=1.0, metavar="KIB", help="growth of a process in a step")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    parser.add_argument("--keep", metavar="DIR", help="keep the run's folder there")
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="agentgym-soak-"))
    command = [sys.executable, "-m", "agentgym.cli.main", "train", "--plain", "--env", f"{Path(__file__)}:Toss"]
    command += ["--runs-dir", str(root), "--name", "soak", f"loop.steps={arguments.steps}"]
    command += [f"{key}={value}" for key, value in SETTINGS.items()] + arguments.set
    try:
        found, code, step_s = watch(command, root / "soak", arguments.every or max(1, arguments.steps // 50))
        print(f"\n{arguments.steps} steps, {step_s:.3f} s each, exit code {code}\n")
        rows = list(verdicts(found, arguments.allow))
        for name, first, last, growth, too_much in rows:
            print(f"{'GROWS' if too_much else 'flat ':5}  {name:32} {first:>14} -> {last:>14}  {growth}")
        return 1 if code or not rows or any(too_much for *_, too_much in rows) else 0
    finally:
        if arguments.keep:
            shutil.move(root / "soak", arguments.keep)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
