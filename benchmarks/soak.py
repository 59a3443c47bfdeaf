"""A long run, and what each of its processes takes over time: memory, live tensors, descriptors, threads, disk.

    python benchmarks/soak.py --steps 2000
    python benchmarks/soak.py --steps 300 --set loop.checkpoint_every=0 --keep soak-run
    python benchmarks/soak.py --job train --minutes 60

It starts `agentgym train` as a user would. `--job toss` (the default) plays an environment of this file that runs code
in the sandbox and pays a coin toss, so that every step trains; `--job train` is what `make train` does, with weights
that hardly move. Samples are taken once every `--every` steps; in each process, heartbeats come every `--beat-s`
seconds, and tensors and the memory without what C's allocator has free are counted (soak_inside/). Each process is
judged against itself after a warm-up of half of the steps, since caches fill meanwhile. The exit code is 1 when one
grows by more than `--allow` KiB a step or by live tensors, when anything else grows at all, or when no heartbeat met a
generator's forward pass. What a run is meant to collect (episodes, metrics, logs) is shown apart.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
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
INSIDE = Path(__file__).with_name("soak_inside")
JOURNAL_BYTES = 2**21  # the steps since the last checkpoint
MONARCH_KIB_S = 0.3  # remain of its messages with every second, whatever a step does (docs/adr/0030)
TENSORS = 0.2  # more live ones with each step are a leak
TOSS = {
    "loop.groups_per_step": 2, "loop.group_size": 4, "loop.checkpoint_every": 20, "loop.check_sync_every": 10,
    "loop.eval_every": 50, "loop.eval_tasks": 4, "eval.tasks": 4, "rollout.max_turn_tokens": 8,
    "rollout.cut_turns": "score", "generator.replicas": 1, "sandbox.name": "monty",
}  # fmt: skip
JOBS = {  # the environment, its settings, and the growth in KiB a step that is allowed
    "toss": (f"{Path(__file__)}:Toss", TOSS, 1.0),
    "train": ("code_exec", {"optimizer.lr": 1e-9}, 8.0),  # else it has learned all after 150 steps, and ends
}
ALWAYS = {"loop.keep_checkpoints": 3}


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

    def warm(self) -> tuple[list[int], list[float]]:
        begin = len(self.steps) // 2
        return self.steps[begin:], self.values[begin:]

    def slope(self) -> float:
        """A step's growth after the warm-up: the median slope (Theil and Sen), which no single jump moves."""
        points = list(zip(*self.warm(), strict=True))
        slopes = [(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in itertools.combinations(points, 2) if x1 > x0]
        return statistics.median(slopes) if slopes else 0.0

    def ends(self) -> tuple[float, float]:
        """Medians of the first three samples after the warm-up, and of the last three."""
        values = self.warm()[1]
        return statistics.median(values[:3]), statistics.median(values[-3:])

    def halves(self) -> tuple[float, float]:
        """The medians of both halves after the warm-up: a file that is open for a moment is no growth."""
        values = self.warm()[1]
        half = max(1, len(values) // 2)
        return statistics.median(values[:half]), statistics.median(values[half:] or values)


@dataclass(kw_only=True)
class Watched:
    """What came of a run. figures: by name, as `descriptors trainer/4118`, where a process is its role and its id."""

    figures: dict[str, Series]
    steps: int
    step_s: float
    code: int
    met: dict[str, tuple[int, int]]  # process -> heartbeats, and how many met a forward pass


def role(process: psutil.Process, root: int) -> str:
    """What a process of the run is for, as `generator0` or `trainer`."""
    if process.pid == root:
        return "controller"
    command = process.cmdline()
    if "--name" in command:
        return command[command.index("--name") + 1].partition("#")[0]
    return next((name for mark, name in MARKS.items() if mark in " ".join(command)), process.name())


def sample(root: psutil.Process, run: Path, counts: Path) -> dict[str, float]:
    """Every figure now: `KiB`, `descriptors`, `threads` and `tensors` of each process, `processes`, bytes."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in [root, *root.children(recursive=True)]:
        with contextlib.suppress(psutil.Error), process.oneshot():
            name = f"{role(process, root.pid)}/{process.pid}"
            found[f"KiB {name}"] = process.memory_info().rss / 1024
            found[f"descriptors {name}"] = process.num_fds()
            found[f"threads {name}"] = process.num_threads()
            found["processes"] += 1
            if counted := told(counts, process.pid):
                found[f"tensors {name}"] = counted["tensors"]
                found[f"heap {name}"] = counted["heap"] / 1024
                found[f"KiB {name}"] = counted["KiB"]
    found["shared memory, bytes"] = sum(map(size, Path("/dev/shm").glob(f"agentgym-*-{root.pid}")))
    for entry in run.iterdir():
        if entry.name == "checkpoints":
            found["checkpoints"] = len(list(entry.iterdir()))
        else:
            found["collected, bytes" if entry.name in COLLECTED else "kept, bytes"] += size(entry)
    return dict(found)


def told(counts: Path, pid: int | str) -> dict[str, int]:
    """What a process counted within itself; empty for one that has no heartbeat."""
    path = counts / f"{pid}.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def size(path: Path) -> int:
    """The size of a file, or of all in a folder; what vanishes meanwhile counts as nothing."""
    total = 0
    for one in [path, *path.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            total += one.stat().st_size if one.is_file() else 0
    return total


def steps_done(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.is_file() else 0


def watch(command: list[str], run: Path, every: int, *, beat_s: float, until_s: float | None) -> Watched:
    """Run the command to its end, or stop it after so many seconds."""
    found: defaultdict[str, Series] = defaultdict(Series)
    log_path, counts = run.parent / "output.log", run.parent / "counts"
    counts.mkdir()
    paths = [str(INSIDE), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    environ |= {"AGENTGYM_SOAK_FOLDER": str(counts), "AGENTGYM_SOAK_BEAT_S": str(beat_s), "MALLOC_ARENA_MAX": "1"}
    begin_s, stopped = time.monotonic(), False
    with log_path.open("w") as log, subprocess.Popen(command, stdout=log, stderr=log, env=environ) as started:
        root = psutil.Process(started.pid)
        first_s, first, done, wanted = time.monotonic(), 0, 0, every
        try:
            while started.poll() is None:
                done = steps_done(run)
                if done and not first:
                    first_s, first = time.monotonic(), done
                if done >= wanted and not stopped:
                    wanted = done + every
                    figures = sample(root, run, counts)
                    for name, value in figures.items():
                        found[name].steps.append(done)
                        found[name].values.append(value)
                    print(line_of(done, figures), flush=True)
                if until_s is not None and time.monotonic() - begin_s > until_s and not stopped:
                    stopped = True
                    started.send_signal(signal.SIGTERM)  # a background job of a shell ignores SIGINT
                time.sleep(0.05)
        finally:
            started.terminate()
    if started.returncode and not stopped:
        print("".join(log_path.read_text().splitlines(keepends=True)[-15:]), file=sys.stderr)
    met = {}
    for name in found:
        what, _, process = name.partition(" ")
        if what == "tensors":
            counted = told(counts, process.partition("/")[2])
            met[process] = (counted["beats"], counted["met"])
    code = 0 if stopped else started.returncode
    step_s = (time.monotonic() - first_s) / max(1, done - first)
    return Watched(figures=dict(found), steps=done, step_s=step_s, code=code, met=met)


def line_of(done: int, figures: dict[str, float]) -> str:
    memory = (
        f"{name[4:].partition('/')[0]} {figure / 1024:.1f}"
        + (f" ({tensors:.0f} tensors)" if (tensors := figures.get(f"tensors {name[4:]}")) else "")
        for name, figure in sorted(figures.items())
        if name.startswith("KiB ")
    )
    return f"step {done:6d}  MiB: {'  '.join(memory)}"


def processes(watched: Watched, allow_kib: float) -> Iterator[tuple[list[str], bool]]:
    """A row for each process that lived for most of the run, and whether it grew too much."""
    samples = max(len(series.steps) for series in watched.figures.values())
    for name, series in sorted(watched.figures.items()):
        what, _, process = name.partition(" ")
        if what != "KiB" or len(series.steps) < samples / 2:
            continue
        (warm, last), slope = series.ends(), series.slope()
        tensors = watched.figures.get(f"tensors {process}", Series([0], [0.0]))
        more = tensors.slope()
        beats, met = watched.met.get(process, (0, 0))
        grows = slope > allow_kib + MONARCH_KIB_S * watched.step_s or more > TENSORS
        unseen = process.startswith("generator") and not met
        yield (
            [
                process,
                f"{warm / 1024:.1f}",
                f"{last / 1024:.1f}",
                f"{slope:+.2f}",
                f"{watched.figures.get(f'heap {process}', Series()).slope():+.2f}",
                f"{slope * 3600 / watched.step_s / 1024:+.1f}",
                f"{tensors.ends()[0]:.0f}",
                f"{more:+.2f}",
                f"{met}/{beats}",
                "GROWS" if grows else "UNSEEN" if unseen else "flat",
            ],
            grows or unseen,
        )


def others(watched: Watched) -> Iterator[tuple[list[str], bool]]:
    """A row for every other figure."""
    for name, series in sorted(watched.figures.items()):
        if name.startswith(("KiB ", "tensors ", "heap ")) or len(series.steps) < 2:
            continue
        first, last = (f"{value:,.0f}" for value in (series.values[0], series.values[-1]))
        if name.startswith("collected"):
            yield [name, first, last, f"{series.slope():+,.0f} bytes a step", "as meant"], False
        else:
            before, after = series.halves()
            grows = after > before * 1.02 + (JOURNAL_BYTES if "bytes" in name else 1)
            yield [name, first, last, f"{after - before:+,.0f} from half to half", "GROWS" if grows else "flat"], grows


def table(heads: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join("  ".join(map(str.rjust, row, widths)) for row in [heads, *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=list(JOBS), default="toss")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--minutes", type=float, help="stop after so long, in place of --steps")
    parser.add_argument("--every", type=int, default=0, help="steps between samples (default: a fiftieth of all, or 5)")
    parser.add_argument("--beat-s", type=float, default=0.25, help="between the heartbeats of each process")
    parser.add_argument("--allow", type=float, metavar="KIB", help="growth of a process in a step (toss 1, train 8)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="another setting of the run")
    parser.add_argument("--keep", metavar="DIR", help="keep the run's folder there")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the run would go on
    root = Path(tempfile.mkdtemp(prefix="agentgym-soak-"))
    environment, settings, allow_kib = JOBS[arguments.job]
    steps, every = (10**6, 5) if arguments.minutes else (arguments.steps, max(1, arguments.steps // 50))
    command = [sys.executable, "-m", "agentgym.cli.main", "train", "--plain", "--env", environment]
    command += ["--runs-dir", str(root), "--name", "soak", f"loop.steps={steps}"]
    command += [f"{key}={value}" for key, value in (settings | ALWAYS).items()] + arguments.set
    until_s = 60 * arguments.minutes if arguments.minutes else None
    try:
        watched = watch(command, root / "soak", arguments.every or every, beat_s=arguments.beat_s, until_s=until_s)
        print(f"\n{watched.steps} steps, {watched.step_s:.3f} s each, exit code {watched.code}\n")
        if not watched.figures:
            return 1
        first = list(processes(watched, arguments.allow or allow_kib))
        heads = ["process/id", "MiB warm", "at the end", "KiB a step", "in use", "MiB an hour", "tensors", "a step"]
        print(table([*heads, "beats in a forward pass", "verdict"], [row for row, _ in first]), "\n")
        second = list(others(watched))
        print(table(["figure", "at first", "at last", "growth", "verdict"], [row for row, _ in second]))
        return 1 if watched.code or any(bad for _, bad in [*first, *second]) else 0
    finally:
        if arguments.keep:
            shutil.move(root / "soak", arguments.keep)
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
