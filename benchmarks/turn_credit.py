"""Whether advantages of turns beat those of whole episodes, on a level of `tool_use` with several errands in a row.

    python benchmarks/turn_credit.py --arms std_normalized per_turn
    python benchmarks/turn_credit.py --seeds 0 1 2 --write docs/algorithms.md

One user asks for several errands of `tool_use`, one after the other; each is judged at the agent's reply to it, and
pays its share of the reward there (a reward of the scope `turn`). The shipped policy knows single errands only, so it
first imitates a few right days. Arms differ in their advantage alone: the same tasks, seeds and number of samples. The
figure is the share of held-out errands that are done right. A run is the unit: the interval of a difference is
Student's t over the seeds. `--relabel benchmarks/measured/turn_credit.jsonl` makes the table of the recorded runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import ClassVar

from agentgym import Environment, Episode, Reply, Task, hookimpl, reward
from agentgym.config import apply_overrides, to_mapping
from agentgym.env import EpisodeContext
from agentgym.evals.statistics import run_difference
from agentgym.hooks import PluginRegistry
from agentgym.run.layers import finish_recipe, finish_sft
from agentgym.run.sft import sft
from agentgym.run.train import train
from agentgym.runs.folder import RunFolder, RunStatus
from agentgym.runs.report import PlainReporter
from agentgym.tools import Schema, ToolCall, ToolResult, Tools
from agentgym.types import Message, Split
from agentgym_envs.tool_use import requests
from agentgym_envs.tool_use.drawing import new_worlds, outcome, questions, snapshots
from agentgym_envs.tool_use.environment import Job, solution
from agentgym_envs.tool_use.judging import is_right
from agentgym_envs.tool_use.offered_tools import offered_tools, schemas_of
from agentgym_envs.tool_use.plans import Plan

ARMS: Mapping[str, tuple[str, ...]] = {
    "std_normalized": ("advantage.name=std_normalized",),
    "per_turn": ("advantage.name=per_turn",),
    "per_turn_discounted": ("advantage.name=per_turn", "advantage.discount=0.5"),
    "gae_turns": ("advantage.name=gae_turns", "advantage.discount=0.5"),
}
FIXED = (
    "loop.groups_per_step=8", "loop.group_size=8", "loop.max_staleness=0", "loop.checkpoint_every=0",
    "loop.check_sync_every=0", "generator.replicas=1", "eval.samples_per_task=2", "logging.sinks=[]",
    "optimizer.lr=5e-4",
)  # fmt: skip
LENGTHS = (
    "rollout.max_episode_tokens=1000", "rollout.max_turn_tokens=48", "generator.max_model_len=1024",
    "trainer.seq_len=1024", "generator.dtype=float32", "trainer.dtype=float32",
)  # fmt: skip
BEGIN, END = "<!-- turn credit -->", "<!-- /turn credit -->"


@dataclass(slots=True, kw_only=True)
class Day:
    """An episode. earned: for each turn so far, 1.0 where it ended an errand well."""

    texts: list[str]
    jobs: list[Job]
    tools: DayTools
    now: int = 0
    turns: int = 0
    earned: list[float] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class DayTools:
    """Offers the tools of all errands; the worlds are those of the errand under way. Implements `Tools`."""

    offered: tuple[str, ...]
    current: Tools

    def schemas(self) -> Sequence[Schema]:
        return schemas_of(self.offered)

    def is_parallel_safe(self, name: str) -> bool:
        return False

    async def call(self, call: ToolCall) -> ToolResult:
        return await self.current.call(call)


class Errands(Environment[Day]):
    """Success is that all errands are done right."""

    name: ClassVar[str] = "errands"
    rewards: ClassVar[Mapping[str, float]] = {"errands": 1.0}
    max_turns: ClassVar[int] = 24

    def __init__(self, *, errands: int = 4, turns: int = 3, levels: Sequence[int] = (1,)) -> None:
        self._errands, self._turns, self._levels = errands, turns, tuple(levels)

    def tasks(self, split: Split, seed: int = 0) -> Iterator[Task]:
        limit = 100 if split == "test" else None
        drawn = questions(split, seed, self._levels, ("calendar", "mail", "shop"), limit and limit * self._errands)
        number = 0
        while len(some := [*islice(drawn, self._errands)]) == self._errands:
            yield Task(
                task_id=f"errands/{split}/{seed}/{number}",
                prompt=({"role": "system", "content": requests.SYSTEM}, {"role": "user", "content": some[0].text}),
                answer=[[one.text, one.plan.to_json()] for one in some],
                split=split,
            )
            number += 1

    async def start(self, context: EpisodeContext[Day]) -> Day:
        context.info.update(success=False, right=0, earned=[])
        texts, jobs = [], []
        assert isinstance(context.task.answer, Sequence)
        for text, saved in context.task.answer:  # type: ignore[misc]
            plan = Plan.from_json(saved)
            wanted, figures = outcome(plan)
            worlds = new_worlds(plan)
            tools = offered_tools(plan.offered, worlds, needed=())
            texts.append(str(text))
            jobs.append(Job(plan=plan, worlds=worlds, wanted=wanted, figures=figures, tools=tools, turns=self._turns))
        offered = tuple(dict.fromkeys(name for job in jobs for name in job.plan.offered))
        return Day(texts=texts, jobs=jobs, tools=DayTools(offered=offered, current=jobs[0].tools))

    async def toolbox(self, context: EpisodeContext[Day]) -> Tools:
        return context.state.tools

    async def after_calls(self, context: EpisodeContext[Day]) -> Reply:
        day = context.state
        day.turns += 1
        return self._next(context, 0.0) if day.turns >= self._turns else self._note(context, 0.0)

    async def reply(self, context: EpisodeContext[Day]) -> Reply:
        day, said = context.state, context.messages[-1]["content"]
        job = day.jobs[day.now]
        heard = [message["content"] for message in context.messages if message["role"] == "user"]
        right = snapshots(job.worlds) == job.wanted and is_right(said, job.figures, heard)
        return self._next(context, float(right))

    def _note(self, context: EpisodeContext[Day], earned: float) -> Reply:
        context.state.earned.append(earned)
        context.info["earned"] = [*context.state.earned]
        return Reply()

    def _next(self, context: EpisodeContext[Day], earned: float) -> Reply:
        """The errand is over."""
        day, info = context.state, context.info
        self._note(context, earned)
        info["right"] = int(sum(day.earned))
        info["success"] = info["right"] == len(day.jobs)
        day.now, day.turns = day.now + 1, 0
        if day.now == len(day.jobs):
            return Reply(done=True)
        day.tools.current = day.jobs[day.now].tools
        return Reply(messages=({"role": "user", "content": day.texts[day.now]},))

    @reward(name="errands", scope="turn", inline=True)
    def pays(self, episode: Episode) -> list[float]:
        """1.0 for the turn that ended an errand well; turns that the limits cut short earn nothing."""
        earned = [float(one) for one in episode.info.get("earned", [])]  # type: ignore[union-attr,arg-type]
        return earned + [0.0] * (len(episode.turns) - len(earned))

    def solve(self, task: Task) -> Iterator[Message]:
        assert isinstance(task.answer, Sequence)
        for _, saved in task.answer:  # type: ignore[misc]
            yield from solution(Plan.from_json(saved))


class _Plugin:
    @hookimpl
    def environments(self) -> dict[str, type[Errands]]:
        return {"errands": Errands}


def warm_start(options: argparse.Namespace) -> str:
    """The policy that all runs begin with: made once, in the folder of the runs."""
    folder = Path(options.runs_dir) / "warm"
    if not folder.exists():
        length = (f"sft.steps={options.warm_steps}", "sft.oracle_tasks=600", "sft.batch_size=16", "eval.at_end=false")
        given = [*length, *LENGTHS, *_environment(options), "optimizer.lr=1e-3", "logging.sinks=[]"]
        recipe, sources = finish_sft(apply_overrides({}, given))
        with RunFolder.create(options.runs_dir, "warm") as run:
            run.save_config(to_mapping(recipe), sources)
            asyncio.run(sft(recipe, run, PlainReporter(sys.stderr), registry=_registry()))
            run.set_status(RunStatus.DONE)
    return str(folder / "checkpoints" / f"step-{options.warm_steps:06d}" / "hf")


def _environment(options: argparse.Namespace) -> tuple[str, ...]:
    return "env.name=errands", f"env.options.errands={options.errands}"


def _registry() -> PluginRegistry:
    registry = PluginRegistry.discover()
    registry.register(_Plugin(), "benchmark")
    return registry


def play(arm: str, seed: int, model: str, options: argparse.Namespace) -> dict[str, object]:
    """A whole run; the held-out episodes' shares of errands, by task."""
    length = (f"loop.steps={options.steps}", f"eval.tasks={options.tasks}", f"loop.seed={seed}")
    given = [f"model.path={model}", *FIXED, *LENGTHS, *_environment(options), *ARMS[arm], *length]
    recipe, sources = finish_recipe(apply_overrides({}, given))
    began = time.monotonic()
    Path(options.runs_dir).mkdir(parents=True, exist_ok=True)
    with RunFolder.create(options.runs_dir, f"{arm}-{seed}", numbered=True) as folder:
        folder.save_config(to_mapping(recipe), sources)
        asyncio.run(train(recipe, folder, PlainReporter(sys.stderr), registry=_registry()))
        folder.set_status(RunStatus.DONE)
        steps = folder.episode_steps(evaluation=True)
        first, last = (shares(folder, step, options.errands) for step in (steps[0], steps[-1]))
        rewards = [row.metrics["rollout/reward_mean"] for row in folder.read_metrics()]
    wall_s = time.monotonic() - began
    return {"arm": arm, "seed": seed, "first": first, "last": last, "rewards": rewards, "wall_s": wall_s}


def shares(folder: RunFolder, step: int, errands: int) -> list[list[float]]:
    """For each held-out task, for each time that it was played, the share of errands that were done right."""
    by_task: dict[str, list[float]] = {}
    for saved in folder.read_episodes(step, evaluation=True):
        right = saved.episode.info.get("right", 0)
        assert isinstance(right, int)
        by_task.setdefault(saved.episode.task.task_id, []).append(right / errands)
    return [by_task[name] for name in sorted(by_task)]


def table(rows: Sequence[Mapping[str, object]], options: argparse.Namespace) -> str:
    def mean(tasks: object) -> float:  # a record has the mean alone
        if isinstance(tasks, float):
            return tasks
        return statistics.fmean(score for task in tasks for score in task)  # type: ignore[attr-defined]

    found = [
        f"{options.errands} errands an episode, {options.steps} steps of 64 episodes, {options.tasks} held-out tasks "
        f"played twice, seeds {', '.join(map(str, options.seeds))}.",
        "",
        "| advantage | errands right before | after, by seed | mean | minus `std_normalized`, 95% over runs "
        "| by seed |",
        "|---|---|---|---|---|---|",
    ]
    by_arm = {arm: [row for row in rows if row["arm"] == arm] for arm in options.arms}
    base = by_arm[options.arms[0]]
    for arm, mine in by_arm.items():
        if len(mine) < len(options.seeds):
            continue
        lasts = [mean(row["last"]) for row in mine]
        difference = each = ""
        if arm != options.arms[0]:
            moves = [mean(a["last"]) - mean(b["last"]) for a, b in zip(mine, base, strict=True)]
            pair = run_difference(moves, resolution=1 / (2 * options.tasks * options.errands))
            said = "not told apart" if not pair.is_clear else "better" if pair.mean > 0 else "worse"
            difference = f"{pair.mean:+.3f} [{pair.low:+.3f}, {pair.high:+.3f}], {said}"
            each = ", ".join(f"{move:+.3f}" for move in moves)
        before = statistics.fmean(mean(row["first"]) for row in mine)
        after = ", ".join(f"{one:.3f}" for one in lasts)
        found.append(f"| `{arm}` | {before:.3f} | {after} | {statistics.fmean(lasts):.3f} | {difference} | {each} |")
    return "\n".join(found)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", default=["std_normalized", "per_turn_discounted"], choices=ARMS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=18)
    parser.add_argument("--errands", type=int, default=4)
    parser.add_argument("--warm-steps", type=int, default=15)
    parser.add_argument("--tasks", type=int, default=32, help="held-out tasks, each played twice")
    parser.add_argument("--runs-dir", default="runs/turn_credit")
    parser.add_argument("--out", default="", help="JSON lines, one run each; runs that are in it are not played again")
    parser.add_argument("--relabel", default="", metavar="RECORDS", help="run nothing: the table of recorded runs")
    parser.add_argument("--write", default="", help="a page with the marks of this table")
    options = parser.parse_args(words)
    out = Path(options.out) if options.out else None
    if options.relabel:
        out, model = Path(options.relabel), ""
    else:
        model = warm_start(options)
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out is not None and out.exists() else []
    for seed in options.seeds:
        for arm in options.arms:
            if any(row["arm"] == arm and row["seed"] == seed for row in rows):
                continue
            rows.append(play(arm, seed, model, options))
            print(f"{arm} {seed}: {rows[-1]['wall_s']:.0f} s", file=sys.stderr, flush=True)
            if out is not None:
                with out.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
    text = table(rows, options)
    print(text)
    if options.write:
        page = Path(options.write)
        before, rest = page.read_text().split(BEGIN)
        page.write_text(f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
