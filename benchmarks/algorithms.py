"""Which loss and which advantage learn most from the same number of sampled episodes: whole runs of the tiny policy.

    python benchmarks/algorithms.py                                 every loss and advantage, three seeds: hours
    python benchmarks/algorithms.py --env math --only grpo gspo opo --seeds 0 1 --stale 0
    python benchmarks/algorithms.py --jobs 8 --out runs/algorithms.jsonl --write docs/algorithms.md
    python benchmarks/algorithms.py --jobs 0                        runs nothing: the table of what is there

Arms differ in their loss or advantage alone; `dr_grpo` also has the advantage of its paper. In synchronous runs with
one update by each batch all ratios are 1, so most losses are one and the same: `--minibatches 4 1` makes them differ.
A run ends with the step in which its budget of sampled episodes is reached, those of groups without signal included.
`--stale 3` trains groups three versions after the one that sampled them, but for the first steps and those that took
the place of groups without signal. Runs are deterministic, and on the CPU. The last line of a run, its figures, goes
into `--out`; runs that are in it are not played again. One that fails is reported, and the others go on.

Differences are of held-out success against the default, paired by task, with the same seeds of training and sampling on
both sides. An interval is over tasks: it says how sure the difference of these runs is, not of other seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentgym.evals.statistics import paired_difference

if TYPE_CHECKING:
    from agentgym.rl.loop import StepRecord, TrainingLoop

HERE = Path(__file__).parent
RECIPES = {"code_exec": "code_exec_sync.yaml", "math": "math.yaml", "tool_use": "tool_use.yaml"}
DEFAULT = "grpo"
LOSSES = ("grpo", "reinforce", "ppo_clip", "dapo", "cispo", "gspo", "sapo", "dppo", "tis", "mis",
          "decoupled")  # fmt: skip
ADVANTAGES = ("mean_only", "rloo", "opo", "reinforce_plus_plus", "gae_tokens")
ARMS: Mapping[str, tuple[str, ...]] = {
    **{name: (f"loss.name={name}",) for name in LOSSES},
    # without the division by the standard deviation it is the paper's
    "dr_grpo": ("loss.name=dr_grpo", "loss.horizon=64", "advantage.name=mean_only"),
    **{name: (f"advantage.name={name}",) for name in ADVANTAGES},
}
GROUP_SIZE, SAMPLES = 8, 2
FIXED = (
    f"loop.group_size={GROUP_SIZE}", "loop.deterministic=true", "loop.checkpoint_every=0", "loop.check_sync_every=0",
    "generator.engine.name=native", "generator.replicas=1", f"eval.samples_per_task={SAMPLES}", "logging.sinks=[]",
    "logging.save_episodes=false", "sandbox.name=monty",
)  # fmt: skip
BEGIN, END = "<!-- fair -->", "<!-- /fair -->"
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is asked for. steps: of `groups` groups; what they sample at least is the budget."""

    env: str
    stale: int
    arm: str
    seed: int
    steps: int
    groups: int
    minibatches: int
    tasks: int

    @property
    def budget(self) -> int:
        return self.steps * self.groups * GROUP_SIZE

    def same(self, row: Row) -> bool:
        return all(row.get(field.name) == getattr(self, field.name) for field in fields(self))


def play(run: Run) -> Row:
    """The whole run, in this process. after: of each held-out task, "1" or "0" for each time that it was played."""
    from agentgym.config import apply_overrides, to_mapping
    from agentgym.jobs.layers import finish_recipe
    from agentgym.jobs.train import train
    from agentgym.runs.folder import RunFolder, RunStatus
    from agentgym.runs.report import PlainReporter
    from agentgym.yaml import read_yaml

    asked = (
        f"loop.steps={run.steps}", f"loop.groups_per_step={run.groups}", f"loop.max_staleness={run.stale}",
        f"loop.seed={run.seed}", f"trainer.seed={run.seed}", f"eval.tasks={run.tasks}",
        f"trainer.minibatches={run.minibatches}",
    )  # fmt: skip
    base = read_yaml(HERE.parent / "apps" / "grpo" / RECIPES[run.env])
    recipe, sources = finish_recipe(apply_overrides(base, [*FIXED, *asked, *ARMS[run.arm]]))
    count, began = Count(budget=run.budget), time.monotonic()
    with tempfile.TemporaryDirectory() as place, RunFolder.create(place, run.arm) as folder:
        folder.save_config(to_mapping(recipe), sources)
        result = asyncio.run(train(recipe, folder, PlainReporter(sys.stderr), change_loop=count.watch))
        folder.set_status(RunStatus.DONE)
    if result.first is None or result.last is None:
        raise RuntimeError(f"{run} was not measured: {result.nothing_left or 'no step was done'}")
    after = ["".join("-" if one is None else str(int(one)) for one in task) for task in result.last.by_task]
    return {
        **asdict(run),
        "before": result.first.success,
        "after": after,
        "episodes": count.episodes,
        "done": result.steps,
        "ended": result.nothing_left,
        "staleness": count.staleness,
        "wall_s": round(time.monotonic() - began, 1),
        "machine": machine(),
    }


@dataclass(slots=True, kw_only=True)
class Count:
    """Ends a loop with the step in which the budget is reached. staleness: the largest mean of a step."""

    budget: int
    episodes: int = 0
    staleness: float = 0.0

    def watch(self, loop: TrainingLoop) -> None:
        after_step = loop.after_step

        async def counted(record: StepRecord) -> None:
            await after_step(record)
            self.episodes += sum(len(group.episodes) for group in (*record.groups, *record.skipped))
            self.staleness = max(self.staleness, statistics.fmean(record.staleness))
            loop.stopping = loop.stopping or self.episodes >= self.budget

        loop.after_step = counted


def machine() -> str:
    from results import machine

    return machine()


def in_a_process(run: Run, cores: Sequence[int]) -> Row:
    """`play`, pinned to these cores. Raises RuntimeError with the end of what it said."""
    command = ["taskset", "-c", ",".join(map(str, cores)), sys.executable, __file__, "--play", json.dumps(asdict(run))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}\n{done.stderr[-2000:]}")
    row: Row = json.loads(done.stdout.strip().splitlines()[-1])
    return row


def measure(
    runs: Sequence[Run], out: Path, jobs: int, play_one: Callable[[Run, Sequence[int]], Row] = in_a_process
) -> list[Run]:
    """Adds what `out` lacks of these runs, `jobs` at a time; returns those that failed."""
    known = read(out)
    left = [run for run in runs if not any(run.same(row) for row in known)]
    cores = sorted(os.sched_getaffinity(0))
    share = max(1, len(cores) // max(1, jobs))
    free: queue.SimpleQueue[Sequence[int]] = queue.SimpleQueue()
    for job in range(jobs):
        first = job * share % len(cores)
        free.put(cores[first : first + share])

    def one(run: Run) -> Run | None:
        place = free.get()
        name = f"{run.env}, {run.stale} stale, {run.arm}, seed {run.seed}"
        try:
            row = play_one(run, place)
        except Exception as error:  # whatever it is, the others go on
            print(f"{name}: FAILED: {error}", file=sys.stderr, flush=True)
            return run
        finally:
            free.put(place)
        with out.open("a") as file:  # one short line: whole, also from several threads
            file.write(json.dumps(row) + "\n")
        print(f"{name}: {row['before']:.3f} -> {mean(row):.3f} in {row['wall_s']:.0f} s", file=sys.stderr, flush=True)
        return None

    out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        return [run for run in pool.map(one, left) if run is not None]


def read(out: Path) -> list[Row]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def scores(row: Row) -> list[list[float | None]]:
    return [[None if one == "-" else float(one) for one in task] for task in row["after"]]


def mean(row: Row) -> float:
    return statistics.fmean(one for task in scores(row) for one in task if one is not None)


def against(base: Mapping[int, Row], mine: Mapping[int, Row]) -> tuple[str, str]:
    """Mine minus base on the seeds of both: with its interval and what it says; and by seed."""
    seeds = [seed for seed in mine if seed in base]
    if not seeds:
        return "the default was not run", ""
    sides = []
    for side in (base, mine):
        by_seed = [scores(side[seed]) for seed in seeds]
        sides.append([[one for task in tasks for one in task] for tasks in zip(*by_seed, strict=True)])
    found = paired_difference(sides[0], sides[1], shares=True)
    said = "better" if found.low > 0 else "worse" if found.high < 0 else "not told apart"
    if sides[0] == sides[1]:
        said = "the same episodes succeed"
    each = ", ".join(f"{mean(mine[seed]) - mean(base[seed]):+.3f}" for seed in seeds)
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], {said}", each


def table(runs: Sequence[Run], rows: Sequence[Row]) -> str:
    """For each environment and staleness, the arms that were run, and those that are missing."""
    lines: list[str] = []
    for env, stale in dict.fromkeys((run.env, run.stale) for run in runs):
        asked = [run for run in runs if (run.env, run.stale) == (env, stale)]
        arms: dict[str, dict[int, Row]] = {}
        for run in asked:
            for row in rows:
                if run.same(row):
                    arms.setdefault(run.arm, {})[run.seed] = row
        if not arms:
            continue
        done = [row for by_seed in arms.values() for row in by_seed.values()]
        sampled, steps = (f"{min(r[key] for r in done)} to {max(r[key] for r in done)}" for key in ("episodes", "done"))
        first, machines = asked[0], ", ".join(sorted({row["machine"] for row in done}))
        lines += [
            f"**`{env}`, {f'{stale} versions stale' if stale else 'synchronous'}**: a budget of {first.budget} sampled "
            f"episodes in groups of {GROUP_SIZE}, {first.groups} groups a step ({sampled} sampled, {steps} steps), "
            f"updates by each batch: {first.minibatches}; "
            f"{first.tasks} held-out tasks, each played {SAMPLES} times; {machines}.",
            "",
            f"| arm | seeds | before | after, mean | minus `{DEFAULT}`, 95% | by seed |",
            "|---|---|---|---|---|---|",
        ]
        base = arms.get(DEFAULT, {})
        for arm, by_seed in sorted(arms.items(), key=lambda one: one[0] != DEFAULT):
            before = statistics.fmean(row["before"] for row in by_seed.values())
            after = statistics.fmean(map(mean, by_seed.values()))
            difference, each = ("", "") if arm == DEFAULT else against(base, by_seed)
            seeds = ", ".join(map(str, by_seed))
            lines.append(f"| `{arm}` | {seeds} | {before:.3f} | {after:.3f} | {difference} | {each} |")
        lines.append("")
        missing = sorted({f"`{run.arm}`" for run in asked} - {f"`{arm}`" for arm in arms})
        if missing:
            lines += [f"Not run: {', '.join(missing)}.", ""]
    return "\n".join(lines).strip()


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(ARMS), choices=ARMS, metavar="ARM", help=", ".join(ARMS))
    parser.add_argument("--env", nargs="+", default=list(RECIPES), choices=RECIPES)
    parser.add_argument("--stale", nargs="+", type=int, default=[0, 3], help="versions; 0 is synchronous")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=30, help="their episodes are the budget")
    parser.add_argument("--groups", type=int, default=8, help=f"a step, of {GROUP_SIZE} episodes each")
    parser.add_argument(
        "--minibatches", nargs="+", type=int, default=[1], help="updates by each batch: one, or one for each --stale"
    )
    parser.add_argument(
        "--tasks", type=int, default=128, help=f"held out, each played {SAMPLES} times before and after"
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each pinned to its share of the cores")
    parser.add_argument("--out", type=Path, default=Path("runs/algorithms.jsonl"), help="one line for each run")
    parser.add_argument("--write", type=Path, help="a page with the marks of this table")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    if options.play:
        print(json.dumps(play(Run(**json.loads(options.play)))))
        return 0
    if len(options.minibatches) not in (1, len(options.stale)):
        parser.error(f"--minibatches {options.minibatches}: give one, or one for each of --stale {options.stale}")
    updates = dict(zip(options.stale, options.minibatches * len(options.stale), strict=False))
    size = {"steps": options.steps, "groups": options.groups, "tasks": options.tasks}
    runs = [  # seeds first: what ends early is a whole table of fewer seeds
        Run(env=env, stale=stale, arm=arm, seed=seed, minibatches=updates[stale], **size)
        for seed, env, stale, arm in product(options.seeds, options.env, options.stale, options.only)
    ]
    failed = measure(runs, options.out, options.jobs) if options.jobs else []
    text = table(runs, read(options.out))
    print(text)
    if options.write:
        before, rest = options.write.read_text().split(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
