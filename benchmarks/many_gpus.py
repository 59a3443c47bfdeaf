"""The whole loop on four or eight GPUs: planned, measured, each part within its own time, and one table.

    python benchmarks/many_gpus.py --list                    what would run here, and how long at most
    python benchmarks/many_gpus.py --out results             all of it; --only loop plan: some
    python benchmarks/many_gpus.py --gpus 2 --out results    as much as two GPUs can show
    python benchmarks/many_gpus.py --cpu --out results       tiny shapes on a CPU: that the commands run

`plan` measures rates with one replica and one trainer process and predicts a step of every split; `loop` measures those
splits, synchronous and asynchronous; `trainer` is its rate by layout, on the same documents, so that the losses must
agree; `weights` is an update that all replicas take while requests run; `drill` kills a replica, then a trainer rank,
of a run under load. Weights are random, in the released shapes, so that no hub is needed; they are drawn once, into
--models. Every part writes what it said into --out; what is there is not measured again. A part over its time is ended
with all that it started, and what it had said is in PART.partial. The table has what ended, where it is stopped too.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from finished_arms import Interrupted, run, stoppable, with_paths
from loop_limit import random_fields
from qwen3_folder import has_weights, write_folder

from agentgym.planning.machine import this_machine

HERE = Path(__file__).parent
APPS = HERE.parent / "apps"
SPLITS = {2: [(1, 1)], 4: [(2, 2), (1, 3)], 8: [(4, 4), (2, 6)]}
"""Of trainer processes and generator replicas, by the number of GPUs: the preset's, and another."""
MODELS = {"1.7B": ("qwen3_1.7b", 2), "8B": ("qwen3_8b", 4)}  # recipe, and the fewest GPUs
LAYOUTS = {2: [(2, 1), (2, 2)], 4: [(4, 1), (4, 2)], 8: [(4, 1), (8, 1), (8, 2)]}  # processes, tensor parallel
GRACE_S = 40.0  # a part's own processes need some of it to end theirs
STEP_TOKENS = 524_288  # of a step of `trainer`, the same in every layout
Row = tuple[str, str, str]  # what, measured, asked or predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """command: from the repository's root. read: its output, and the folder of all, to rows of the table."""

    name: str
    limit_s: float
    command: Sequence[str]
    read: Callable[[str, Path], list[Row]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """tokens: of the longest completion. tiny: for a CPU. models: where the weights are."""

    gpus: int
    models_dir: Path
    tokens: int
    steps: int
    tiny: bool

    @property
    def engine(self) -> str:
        return "TailedNative" if self.tiny else "TailedVllm"

    @property
    def splits(self) -> list[tuple[int, int]]:
        return [(1, 1)] if self.tiny else SPLITS[self.gpus]

    def models(self) -> Iterator[tuple[str, str]]:
        for name, (recipe, fewest) in MODELS.items():
            if not (self.tiny and name != "1.7B") and fewest <= self.gpus:
                yield name, recipe

    def folder(self, model: str) -> Path:
        return self.models_dir / ("tiny" if self.tiny else model)

    def fields(self, model: str) -> list[str]:
        fields = random_fields(self.folder(model), self.tokens, self.engine)
        if self.tiny:
            fields += ["trainer.device=cpu", "generator.device=cpu", "loop.groups_per_step=4", "loop.group_size=4"]
            fields += ["weights.store=shared_memory", "trainer.check_memory=false", "generator.max_batch=16"]
        return fields


def parts(size: Size, out: Path) -> Iterator[Part]:
    for model, recipe in size.models():
        file, fields = str(APPS / "grpo" / f"{recipe}.yaml"), size.fields(model)
        yield Part(
            name=f"plan-{model}",
            limit_s=420,
            command=[*agentgym("plan"), file, "--measure", "--save-rates", str(out / f"rates-{model}.yaml"), "--json",
                     *sets(fields)],
            read=lambda text, _: [],
        )  # fmt: skip
        for procs, replicas in size.splits:
            split = [f"trainer.procs={procs}", f"generator.replicas={replicas}"]
            yield Part(
                name=f"loop-{model}-{procs}+{replicas}",
                limit_s=600,
                command=[
                    *script("loop_limit"),
                    file,
                    "--steps",
                    str(size.steps),
                    "--no-limit",
                    *sets([*fields, *split]),
                ],
                read=lambda text, out, model=model, split=(procs, replicas): loop_rows(text, out, model, split),  # type: ignore[misc]
            )
    for model, recipe in size.models():
        for procs, tensor in [(1, 1)] if size.tiny else LAYOUTS[size.gpus]:
            tokens = ["--tokens", str(1024 if size.tiny else STEP_TOKENS * tensor // procs)]  # of each GPU
            device = ["--device", "cpu", "--documents", "128"] if size.tiny else []
            fields = [f"model={{path: '{size.folder(model)}', random_weights: true}}"]
            layout = [f"trainer.tensor_parallel={tensor}"]
            yield Part(
                name=f"trainer-{model}-{procs}x{tensor}",
                limit_s=240,
                command=[*script("trainer_rate"), str(APPS / "grpo" / f"{recipe}.yaml"), "--gpus", str(procs), *tokens,
                         *device, "--set", *fields, *layout],
                read=trainer_rows,
            )  # fmt: skip
    for model, _ in size.models():
        procs, replicas = size.splits[0]
        device = ["--device", "cpu", "--rounds", "2", "--requests", "4", "--tokens", "64"] if size.tiny else []
        store = "shared_memory" if size.tiny else "cuda_ipc"
        yield Part(
            name=f"weights-{model}",
            limit_s=420,
            command=[*script("weight_sync"), str(size.folder(model)), "--gpus", str(procs), "--replicas", str(replicas),
                     "--store", store, *device],
            read=weight_rows,
        )  # fmt: skip
    procs, replicas = size.splits[0]
    model, recipe = next(size.models())
    split = [f"trainer.procs={procs}", f"generator.replicas={replicas}", "generator.probe_every_s=1"]
    words = sets([*size.fields(model), *split, f"loop.steps={4 * size.steps}", "eval.at_end=false", "logging.sinks=[]"])
    run = [
        *agentgym("train"),
        str(APPS / "grpo" / f"{recipe}.yaml"),
        "--plain",
        "--runs-dir",
        str(out / "drill"),
        *words,
    ]
    yield Part(name="drill", limit_s=600, command=[*script("many_gpus"), "--kill", json.dumps(run)], read=drill_rows)


def draw(model: str, folder: Path) -> list[str]:
    """The command that draws random weights, unless the folder has them; on a GPU, where 8B take half a minute."""
    return [*script("qwen3_folder"), model, str(folder), "--weights", "--device", "cuda"]


def missing(size: Size, chosen: Sequence[Part], out: Path) -> Iterator[Part]:
    """What draws the weights that these parts need and that are not there."""
    words = " ".join(word for part in chosen for word in part.command)
    for model, _ in size.models():
        folder = size.folder(model)
        if str(folder) in words and not has_weights(folder):
            (out / f"draw-{model}.txt").unlink(missing_ok=True)  # of weights that have been removed
            yield Part(name=f"draw-{model}", limit_s=240, command=draw(model, folder), read=lambda text, _: [])


def agentgym(command: str) -> list[str]:
    return [sys.executable, "-m", "agentgym.cli.main", command]


def script(name: str) -> list[str]:
    return [sys.executable, str(HERE / f"{name}.py")]


def sets(fields: Sequence[str]) -> list[str]:
    return [word for field in fields for word in ("--set", field)]


def loop_rows(text: str, out: Path, model: str, split: tuple[int, int]) -> list[Row]:
    found = next(json.loads(line) for line in text.splitlines() if line.startswith('{"alone_s"'))
    steps, limit = found["step_s"], max(found["alone_s"].values())
    planned = predicted_s(out, model, split)
    about = f"planned {planned:.2f} s ({planned / steps['1'] - 1:+.0%})" if planned else ""
    rows = [
        (f"asynchronous step, staleness {at}", f"{steps[at]:.2f} s", about if at == "1" else "") for at in ("1", "3")
    ]
    best = min(steps["1"], steps["3"])
    stale = ", ".join(f"{found['staleness'][at]:.2f}" for at in ("1", "3"))
    return [
        *rows,
        ("by the slower of generation and training alone", f"{best / limit:.2f}", "at most 1.10"),
        ("synchronous by asynchronous", f"{steps['0'] / best:.2f}", "at least 2.5 on eight"),
        ("mean staleness", stale, ""),
    ]


def predicted_s(out: Path, model: str, split: tuple[int, int]) -> float | None:
    """A step of this split, by the plan that was made before; None where there is none."""
    place = out / f"plan-{model}.txt"
    text = place.read_text() if place.exists() else ""
    begin = text.find('{\n "splits"')
    splits = json.loads(text[begin:])["splits"] if begin >= 0 else []
    steps = (one["step_s"] for one in splits if (one["trainer_procs"], one["generator_replicas"]) == split)
    return next(steps, None)


def trainer_rows(text: str, _: Path) -> list[Row]:
    rows = [json.loads(line) for line in text.splitlines() if line.startswith('{"step"')]
    best = rows[-1]
    losses = " ".join(f"{row['loss']:.4f}" for row in rows[:3])
    return [
        ("MFU by 6N", f"{best['mfu']:.1%}, {best['tokens_per_s']:,.0f} tokens/s", "at least 48% of 1.7B on four"),
        ("losses", losses, "those of the other layouts"),
    ]


def weight_rows(text: str, _: Path) -> list[Row]:
    """Medians without the first update, which opens connections."""
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    one = {key: statistics.median(row[key] for row in rows[1:] or rows) for key in rows[0]}
    fresh, stale = max(row["fresh"] for row in rows), min(row["stale"] for row in rows)
    share = f", {one['link_share']:.0%} of the link" if "link_share" in one else ""
    return [
        ("push", f"{one['push_s']:.2f} s", ""),
        ("load", f"{one['load_s']:.3f} s for {one['gb']:.2f} GB{share}", "half of the link"),
        ("requests pause", f"{one['paused_s']:.3f} s", "at most 0.3 s"),
        ("in host memory", f"{one['host_gb']:.2f} GB", "nothing between GPUs"),
        ("fresh samples from the trainer", f"{fresh:.2g} nats", f"far less than those before: {stale:.2g}"),
    ]


def drill_rows(text: str, _: Path) -> list[Row]:
    found = json.loads(text.splitlines()[-1])
    return [(f"after {who}", said, "the run goes on") for who, said in found.items()]


def kill(run: Sequence[str]) -> dict[str, str]:
    """Starts the run, kills one generator and, two steps later, one rank of the trainer; what came of it."""
    folder = Path(run[run.index("--runs-dir") + 1])
    found: dict[str, str] = {}
    with subprocess.Popen(run, stdout=subprocess.DEVNULL, env=with_paths()) as training:
        for victim, after in (("generator", 2), ("trainer", 4)):
            while training.poll() is None and steps_of(folder) < after:
                time.sleep(0.2)
            pids = pids_of(training.pid, victim)
            if training.poll() is not None or not pids:
                return {**found, victim: f"not killed: the run ended with {training.poll()}, {len(pids)} processes"}
            os.kill(pids[-1], signal.SIGKILL)
            killed, began = steps_of(folder), time.monotonic()
            while training.poll() is None and steps_of(folder) <= killed:
                time.sleep(0.2)
            found[victim] = f"next step {time.monotonic() - began:.1f} s after the kill in step {killed + 1}"
        found["end"] = f"exit code {training.wait()}, {steps_of(folder)} steps"
    return found


def steps_of(folder: Path) -> int:
    """Distinct steps in the run's metrics: a trainer that comes back may do some again."""
    files = list(folder.glob("*/metrics.jsonl"))
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("}")]
    return len({row["step"] for row in rows if "train/loss" in row})


def pids_of(parent: int, name: str) -> list[int]:
    """The run's own processes of this name, by the file that each beats into."""
    import psutil

    found = []
    try:
        children = psutil.Process(parent).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    for child in children:
        try:
            opened = [Path(file.path).name for file in child.open_files()]
        except psutil.Error:
            continue
        if any(file.startswith(name) and file.endswith((".log", ".beat")) for file in opened):
            found.append(child.pid)
    return found


def measure(part: Part, out: Path, stop: Event | None = None) -> list[Row]:
    """Runs it, or reads what is in `out`. What fails is a row that says so. stop: another thread's way to end it."""
    place, partial, failed = (out / f"{part.name}.{ending}" for ending in ("txt", "partial", "failed"))
    if not place.exists():
        print(f"... {part.name}, at most {part.limit_s:.0f} s", file=sys.stderr, flush=True)
        began = time.monotonic()
        try:
            code = run(
                part.command, out=partial, log=failed, limit_s=part.limit_s, grace_s=GRACE_S, cwd=HERE.parent, stop=stop
            )
        except subprocess.TimeoutExpired:
            return [("not finished", f"after {part.limit_s:.0f} s, see {partial.name}", "")]
        except Interrupted:
            return [("not finished", f"stopped, see {partial.name}", "")]
        if code:
            return [("failed", f"exit code {code}, see {failed.name} and {partial.name}", "")]
        partial.rename(place)
        failed.unlink()
        print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    try:
        return part.read(place.read_text(), out)
    except (LookupError, StopIteration, ValueError) as error:  # it said something else than what is read
        return [("failed", f"can't be read, {type(error).__name__}: {error}, see {place.name}", "")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, choices=SPLITS, help="default: those of this machine")
    parser.add_argument("--cpu", action="store_true", help="tiny shapes: shows that the commands run")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="parts whose name begins so")
    parser.add_argument("--tokens", type=int, default=1024, help="of the longest completion")
    parser.add_argument("--steps", type=int, default=14, help="of a run of the loop")
    parser.add_argument(
        "--models", type=Path, default=Path("/tmp/many-gpus"), help="folder of the models' random weights"
    )
    parser.add_argument("--list", action="store_true", help="the commands; runs nothing")
    parser.add_argument("--kill", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.kill:
        print(json.dumps(kill(json.loads(given.kill))))
        return 0
    gpus = given.gpus or max((number for number in SPLITS if number <= len(this_machine().gpus)), default=0)
    if not gpus and not given.cpu and not given.list:
        parser.error("this machine has fewer than two GPUs; --list shows the commands, --cpu runs them in small")
    size = Size(
        models_dir=given.models.resolve(),
        gpus=gpus or 8,
        tokens=64 if given.cpu else given.tokens,
        steps=given.steps,
        tiny=given.cpu,
    )
    chosen = [part for part in parts(size, given.out) if not given.only or part.name.startswith(tuple(given.only))]
    if given.list:
        for part in chosen:
            print(f"{part.name}, at most {part.limit_s:.0f} s:\n  {shlex.join(part.command)}")
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    if given.cpu:
        write_folder("Qwen/Qwen3-0.6B", size.folder("1.7B"), tiny=True, weights=True)
    table: list[tuple[str, ...]] = []
    with stoppable():
        try:
            for part in [*missing(size, chosen, given.out), *chosen]:
                table += [(part.name, *row) for row in measure(part, given.out)]
        finally:
            print("| part | figure | measured | asked or predicted |\n|---|---|---|---|")
            print("\n".join(f"| {' | '.join(row)} |" for row in table), flush=True)
    return int(any(row[1] in ("failed", "not finished") for row in table))


if __name__ == "__main__":
    sys.exit(main())
