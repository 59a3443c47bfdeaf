"""Which loss and which advantage learn most from the same number of sampled episodes: whole runs of the tiny policy.

    python benchmarks/algorithms.py                                 every loss and advantage, three seeds: hours
    python benchmarks/algorithms.py --env math --only grpo gspo opo --seeds 0 1 --stale 0
    python benchmarks/algorithms.py --jobs 8 --out runs/algorithms.jsonl
    python benchmarks/algorithms.py --jobs 0                        runs nothing: the table of what is there
    python benchmarks/algorithms.py --relabel benchmarks/measured/algorithms.json

Arms differ in their loss or advantage alone; `dr_grpo` also has the advantage of its paper. In synchronous runs with
one update by each batch all ratios are 1, so most losses are one and the same: `--minibatches 4 1` makes them differ.
A run ends with the step in which its budget of sampled episodes is reached, those of groups without signal included.
`--stale 3` trains groups three versions after the one that sampled them, but for the first steps and those that took
the place of groups without signal. Runs are deterministic, and on the CPU. The last line of a run, its figures, goes
into `--out`; runs that are in it are not played again. One that fails is reported, and the others go on.

Differences are of held-out success against the default, on the same tasks, with the same seeds of training and sampling
on both sides. A run is the unit: an interval is Student's t over the runs' differences. All differences of the page
are read together, so a label needs a p-value that Holm's correction leaves below 0.05: then the chance of one wrong
label on the whole page is at most 5%, although the rows share the default's runs. (Benjamini and Hochberg bound the
share of wrong labels instead, which does not help whoever reads a single row.) The noise floor is the difference of
`rloo` and `mean_only`, whose advantages are the same but for a constant factor, which AdamW divides out.
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

from agentgym.evals.statistics import holm, run_difference

if TYPE_CHECKING:
    from agentgym.evals.statistics import RunDifference
    from agentgym.loops.async_rl import StepRecord, TrainingLoop

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
SAME = ("rloo", "mean_only")
"""One algorithm: advantages that differ by a constant factor, which AdamW divides out."""
LEVEL = 0.05
Row = dict[str, Any]
"""What a run measured."""
Record = dict[str, Any]
"""What the runs of an environment and a staleness came to; `--records` saves a list of them."""


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
    from agentgym.run.layers import finish_recipe
    from agentgym.run.train import train
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


def summarize(runs: Sequence[Run], rows: Sequence[Row]) -> list[Record]:
    """Summarizes the arms that were run for each environment and staleness. minus: the difference to the default, by
    seed.
    """
    records: list[Record] = []
    for env, stale in dict.fromkeys((run.env, run.stale) for run in runs):
        asked = [run for run in runs if (run.env, run.stale) == (env, stale)]
        arms: dict[str, dict[int, Row]] = {}
        for run in asked:
            for row in rows:
                if run.same(row):
                    arms.setdefault(run.arm, {})[run.seed] = row
        if not arms:
            continue
        base = arms.get(DEFAULT, {})
        found = [
            {
                "arm": arm,
                "seeds": [*by_seed],
                "before": statistics.fmean(row["before"] for row in by_seed.values()),
                "after": statistics.fmean(map(mean, by_seed.values())),
                "minus": {
                    str(seed): mean(row) - mean(base[seed])
                    for seed, row in by_seed.items()
                    if seed in base and arm != DEFAULT
                },
            }
            for arm, by_seed in sorted(arms.items(), key=lambda one: one[0] != DEFAULT)
        ]
        missing = sorted({run.arm for run in asked} - arms.keys())
        about = _about(asked[0], [row for by_seed in arms.values() for row in by_seed.values()])
        plays = asked[0].tasks * SAMPLES
        records.append({"env": env, "stale": stale, "about": about, "plays": plays, "arms": found, "missing": missing})
    return records


def _about(run: Run, rows: Sequence[Row]) -> str:
    sampled, steps = (f"{min(r[key] for r in rows)} to {max(r[key] for r in rows)}" for key in ("episodes", "done"))
    return (
        f"a budget of {run.budget} sampled episodes in groups of {GROUP_SIZE}, {run.groups} groups a step "
        f"({sampled} sampled, {steps} steps), updates by each batch: {run.minibatches}; {run.tasks} held-out tasks, "
        f"each played {SAMPLES} times; {', '.join(sorted({row['machine'] for row in rows}))}."
    )


def table(records: Sequence[Record]) -> str:
    """What all differences say together, then a table for each record."""
    found = {
        (number, one["arm"]): run_difference([*one["minus"].values()], resolution=1 / record["plays"])
        for number, record in enumerate(records)
        for one in record["arms"]
        if len(one["minus"]) > 1
    }
    corrected = dict(zip(found, holm([one.chance for one in found.values()]), strict=True))
    lines, floor = [], []
    for number, record in enumerate(records):
        how = f"{record['stale']} versions stale" if record["stale"] else "synchronous"
        lines += [
            f"**`{record['env']}`, {how}**: {record['about']}",
            "",
            f"| arm | seeds | before | after, mean | minus `{DEFAULT}`, 95% over runs | p, of {len(found)} tests "
            "| by seed |",
            "|---|---|---|---|---|---|---|",
        ]
        for one in record["arms"]:
            key = number, one["arm"]
            lines.append(_row(one, found.get(key), corrected.get(key, 1.0)))
        a, b = ({**next((one["minus"] for one in record["arms"] if one["arm"] == arm), {})} for arm in SAME)
        same = {seed: a[seed] - b[seed] for seed in a if seed in b}
        if len(same) > 1:
            floor.append(same)
            shown = _interval(run_difference([*same.values()], resolution=1 / record["plays"]))
            names = " minus ".join(f"`{name}`" for name in SAME)
            lines.append(f"| noise floor: {names} | {', '.join(same)} |  |  | {shown} |  | {_moves(same)} |")
        lines.append("")
        if missing := record.get("missing"):
            lines += [f"Not run: {', '.join(f'`{arm}`' for arm in missing)}.", ""]
    return "\n".join([*_together(found, corrected, floor), *lines]).strip()


def _row(one: Record, found: RunDifference | None, chance: float) -> str:
    """found, chance: None and anything where there are fewer than two runs to compare."""
    difference = p = ""
    if found is not None:
        said = "not told apart" if chance >= LEVEL else "better" if found.mean > 0 else "worse"
        difference, p = f"{_interval(found)}, {said}", f"{found.chance:.2g}, corrected {chance:.2g}"
    elif one["arm"] != DEFAULT:
        difference = "one run" if one["minus"] else "the default was not run"
    seeds = ", ".join(map(str, one["seeds"]))
    figures = f"{one['before']:.3f} | {one['after']:.3f} | {difference} | {p} | {_moves(one['minus'])}"
    return f"| `{one['arm']}` | {seeds} | {figures} |"


def _together(
    found: Mapping[tuple[int, str], RunDifference],
    corrected: Mapping[tuple[int, str], float],
    floor: Sequence[Mapping[str, float]],
) -> list[str]:
    """What all tests come to, and how far apart one algorithm is from itself."""
    if not found:
        return []
    alone, left = sum(one.is_clear for one in found.values()), sum(one < LEVEL for one in corrected.values())
    said = (
        f"Of {len(found)} differences {alone} have an interval without zero, where about {LEVEL * len(found):.0f} "
        f"would have one if no arm differed; after the correction for {len(found)} tests (Holm) {left} are told apart."
    )
    if floor:
        runs = [abs(move) for same in floor for move in same.values()]
        means = [abs(statistics.fmean(same.values())) for same in floor]
        said += (
            f" `{SAME[0]}` and `{SAME[1]}`, which are one algorithm, differ by up to {max(runs):.3f} between runs with "
            f"the same seed and by up to {max(means):.3f} in a table's mean: less than that is noise in any row."
        )
    return [said, ""]


def _interval(found: RunDifference) -> str:
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}]"


def _moves(minus: Mapping[str, float]) -> str:
    return ", ".join(f"{move:+.3f}" for move in minus.values())


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
    parser.add_argument("--records", type=Path, help="save what the tables are made of")
    parser.add_argument("--relabel", type=Path, metavar="RECORDS", help="run nothing: the tables of saved records")
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
    failed = measure(runs, options.out, options.jobs) if options.jobs and not options.relabel else []
    saved = options.relabel and json.loads(options.relabel.read_text())
    records = saved or summarize(runs, read(options.out))
    if options.records:
        options.records.write_text(json.dumps(records, indent=1) + "\n")
    print(table(records))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
