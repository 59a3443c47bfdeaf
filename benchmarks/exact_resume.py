"""One deterministic asynchronous run, and the same with interruptions at random points: are they the same run?

    python benchmarks/exact_resume.py --points 20 --steps 60

Both are `agentgym train` as a user would start it. Every second point is a kill -9 of the run's process, the others are
asked of the run (`stop`, which saves first). Each point is a random step and a random time in it. Compared are the
weights and AdamW's moments of every checkpoint that both have, byte for byte; every episode, token for token, with
log-probabilities, versions, rewards and advantages; and the figures of every step that are not of times. The exit code
is 1 where anything differs. `--set loop.max_staleness=0` is for a synchronous run.

In each mode what a checkpoint kept of the groups under way must be what the run then had. With
`--set loop.deterministic=false` that is all that is asked for.
"""

from __future__ import annotations

import argparse
import itertools
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from agentgym.run.state import read_position
from agentgym.runs.checkpoints import load_position
from agentgym.runs.folder import RunFolder
from agentgym.runs.in_flight import load_in_flight
from agentgym.runs.steering import Steering
from agentgym.types import Completion, Turn

SETTINGS = {
    "env.options.levels": "[1]",
    "loop.deterministic": "true",
    "loop.groups_per_step": 3,
    "loop.group_size": 4,
    "loop.max_staleness": 2,
    "loop.checkpoint_every": 3,
    "loop.check_sync_every": 0,
    "optimizer.lr": 1e-3,
    "eval.at_end": "false",
    "generator.replicas": 2,
}
OF_TIMES = ("time", "train/time/", "generator/", "sandbox/")
TIMEOUT_S = 600  # of what never takes as long


def differences(one: RunFolder, other: RunFolder) -> list[str]:
    """What differs between two runs that should be one; empty where nothing does."""
    found = []
    rows, of_other = ({row.step: row for row in run.read_metrics()} for run in (one, other))
    if rows.keys() != of_other.keys() or not rows:
        return [f"steps {sorted(rows)} and {sorted(of_other)}"]
    for step, row in rows.items():
        names = row.metrics.keys() | of_other[step].metrics.keys()
        figures = [n for n in sorted(names) if not n.startswith(OF_TIMES) and not n.endswith("_s")]
        found += [
            f"step {step}: {name} is {row.metrics.get(name)} and {of_other[step].metrics.get(name)}"
            for name in figures
            if row.metrics.get(name) != of_other[step].metrics.get(name)
        ]
        pairs = zip(_episodes(one, step), _episodes(other, step), strict=False)
        found += [f"step {step}: episode {a[0]} differs" for a, b in pairs if a != b]
        if len(_episodes(one, step)) != len(_episodes(other, step)):
            found.append(f"step {step}: another number of episodes")
    for step in sorted({*one.checkpoint_steps()} & {*other.checkpoint_steps()}):
        for path in sorted(one.checkpoint_dir(step).rglob("*")):
            name = path.relative_to(one.checkpoint_dir(step))
            if path.suffix in (".safetensors", ".distcp"):
                copy = other.checkpoint_dir(step) / name
                if not copy.is_file() or copy.read_bytes() != path.read_bytes():
                    found.append(f"the checkpoint of step {step}: {name} differs")
    return found


def lost(run: RunFolder) -> tuple[list[str], int]:
    """What a checkpoint kept of groups and the run then had otherwise, and how many turns were looked at."""
    found, num_turns = [], 0
    turns: dict[int, list[tuple[object, ...]]] = {}
    for step in run.episode_steps():
        for group_id, saved in itertools.groupby(run.read_episodes(step), lambda one: one.group_id):
            if group_id in turns:
                found.append(f"group {group_id} was taken twice")
            turns[group_id] = [_sampled(turn) for one in saved for turn in one.episode.turns]
    for step in run.checkpoint_steps():
        if not (position := read_position(load_position(run, step))):
            continue
        kept = load_in_flight(run, step, position.next_group)
        of_groups = {n: [_sampled(t) for e in group.episodes for t in e.turns] for n, group in kept.ended.items()}
        of_groups |= {n: [_sampled(turn.completion) for turn in group.turns] for n, group in kept.begun.items()}
        for number, sampled in of_groups.items():
            num_turns += len(sampled)
            if number in turns and any(turn not in turns[number] for turn in sampled):
                found.append(f"the checkpoint of step {step} has turns of group {number} that the run lost")
    return found, num_turns


def _sampled(turn: Turn | Completion) -> tuple[object, ...]:
    return turn.completion_ids, turn.logprobs, turn.versions


def _episodes(run: RunFolder, step: int) -> list[tuple[object, ...]]:
    return [
        (
            saved.episode.episode_id,
            saved.episode.task,
            saved.episode.turns,
            saved.episode.rewards,
            saved.episode.reward,
            saved.advantage,
            saved.trained,
            saved.start_version,
        )
        for saved in run.read_episodes(step)
    ]


def interrupted(command: list[str], folder: Path, points: Iterator[tuple[int, float, str]], log: Path) -> int:
    """Run to the end, with a resume after each point: (step, seconds after it, how). Returns how many there were."""
    done = 0
    with log.open("wb") as output:
        for step, after_s, how in points:
            arguments = ["--resume", str(folder)] if done else command
            run = subprocess.Popen(["agentgym", "train", *arguments, "--plain"], stdout=output, stderr=output)
            if _reaches(run, folder, step):
                time.sleep(after_s)
                if how == "kill":
                    run.kill()
                else:
                    Steering(folder).ask("stop")
            run.wait(TIMEOUT_S)
            done += 1
            with RunFolder.open(folder) as seen:
                last = max((row.step for row in seen.read_metrics()), default=0)
            print(f"point {done}: {how} in step {step + 1}, {after_s:.2f} s after its beginning; at {last}", flush=True)
        subprocess.run(["agentgym", "train", "--resume", folder, "--plain"], stdout=output, stderr=output, check=True)
    return done


def _reaches(run: subprocess.Popen[bytes], folder: Path, step: int) -> bool:
    metrics = folder / "metrics.jsonl"
    while run.poll() is None:
        if metrics.exists() and metrics.read_bytes().count(b"\n") >= step:
            return True
        time.sleep(0.02)
    return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--env", default="math")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--runs-dir", type=Path, help="where both runs stay; without it they are removed")
    given = parser.parse_args()
    settings = [f"{key}={value}" for key, value in (SETTINGS | {"loop.steps": given.steps}).items()]
    settings += [f"loop.seed={given.seed}", *given.set]
    draw = random.Random(given.seed)
    steps = sorted(draw.sample(range(1, given.steps - 1), given.points))
    points = [(step, draw.random(), ("kill", "stop")[n % 2]) for n, step in enumerate(steps)]
    with tempfile.TemporaryDirectory(prefix="agentgym-exact-") as scratch:
        runs = given.runs_dir or Path(scratch)
        runs.mkdir(parents=True, exist_ok=True)
        command = ["--env", given.env, "--runs-dir", str(runs), *(w for s in settings for w in ("--set", s))]
        with (runs / "whole.log").open("wb") as log:
            subprocess.run(
                ["agentgym", "train", *command, "--name", "whole", "--plain"], stdout=log, stderr=log, check=True
            )
        print("the run without interruptions has ended", flush=True)
        num = interrupted([*command, "--name", "again"], runs / "again", iter(points), runs / "again.log")
        with RunFolder.open(runs / "whole") as whole, RunFolder.open(runs / "again") as again:
            missing, num_turns = lost(again)
            found = missing + (differences(whole, again) if again.load_config()["loop"]["deterministic"] else [])
            episodes = sum(len(_episodes(whole, row.step)) for row in whole.read_metrics())
            both = {*whole.checkpoint_steps()} & {*again.checkpoint_steps()}
            ages = max(row.metrics["loop/staleness_max"] for row in whole.read_metrics())
    print("\n".join(found[:20]))
    counted = f"{num} interruptions, {given.steps} steps, {episodes} episodes, {len(both)} checkpoints in both"
    counted += f", {num_turns} turns kept by checkpoints"
    print(f"{counted}, staleness up to {ages:g}: {len(found) or 'no'} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
