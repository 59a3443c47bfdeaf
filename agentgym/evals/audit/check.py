"""The whole check of one environment: its tasks, its oracle, every probe, and what has to be the same twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgym.agents import ProgramEnvironment
from agentgym.env import Environment, default_weights
from agentgym.errors import UserError, nearest
from agentgym.evals.audit.findings import KINDS, Report
from agentgym.evals.audit.judge import Judge
from agentgym.evals.audit.playing import make_attempts, play_probe, solve
from agentgym.evals.audit.probes import PROBES
from agentgym.evals.audit.prompts import check_prompts
from agentgym.evals.audit.repeats import ChildRequest, check_again, check_processes
from agentgym.evals.audit.stage import Stage
from agentgym.evals.audit.stream import check_stream, first_tasks
from agentgym.evals.audit.watched import Hangs
from agentgym.hooks import PluginRegistry
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.sandbox import SandboxOptions
from agentgym.stability import VERSION
from agentgym.types import Json, Task

MAX_TOKENS = RolloutConfig().max_episode_tokens
PARTS: Mapping[str, str] = {
    "tasks": "splits, ids, overlap, time to make one",
    "prompts": "prompts that are too long",
    "oracle": "the environment's own right answers",
    **{name: probe.what for name, probe in PROBES.items()},
    "together": "episodes that are played at the same time",
    "processes": "other processes, with other values of PYTHONHASHSEED",
}
"""What `only` can choose, and what each looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckConfig:
    name: str
    """The environment, by name or import path."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """Keyword arguments of the environment."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Weights of rewards by name; empty takes the environment's own."""
    num_tasks: int = 16
    """Test tasks that are played."""
    seed: int = 0
    """Decides the order of the tasks and what is sampled."""
    sandbox: str = "auto"
    """The sandbox, as in a recipe."""
    sandbox_options: SandboxOptions = field(default_factory=dict)
    """Options of the sandbox."""
    only: Collection[str] = ()
    """Parts of `PARTS` that are checked; empty is all."""
    allowed: Collection[str] = ()
    """Kinds of findings, or `kind:where`, that do not count."""
    max_tokens: int = MAX_TOKENS
    """Tokens of an episode."""
    env_timeout_s: float = 20.0
    """Seconds of one call into the environment; a task may take three times as long, for the data that the first one
    loads."""

    def __post_init__(self) -> None:
        if self.num_tasks < 2:
            raise UserError(f"{self.num_tasks} tasks: give at least 2, since wrong answers are those of other tasks")
        for name in self.only:
            if name not in PARTS:
                raise UserError(f"a check has no part {name!r}.{nearest(name, PARTS)}")
        for allowed in self.allowed:
            if (kind := allowed.partition(":")[0]) not in KINDS:
                raise UserError(f"there is no kind of finding {kind!r}.{nearest(kind, KINDS)}")

    @property
    def task_s(self) -> float:
        return 3 * self.env_timeout_s

    def has(self, part: str) -> bool:
        return not self.only or part in self.only


async def check_environment(registry: PluginRegistry, config: CheckConfig, say: Callable[[str], None]) -> Report:
    """Play the environment without any model. say: what is done at the moment.

    Raises UserError for unknown names and options, and where no sandbox is available.
    """
    began = time.monotonic()
    environment = build_environment(registry, config.name, config.options)
    weights = dict(config.rewards or default_weights(environment))
    report = Report(
        environment=config.name,
        version=environment.version,
        agentgym=VERSION,
        options=dict(config.options),
        weights=weights,
    )
    if config.has("tasks"):
        check_stream(environment, config.seed, report, say, limit_s=config.task_s)
    tasks = [] if report.hangs else _tasks(environment, config, report)
    if isinstance(environment, ProgramEnvironment):
        report.notes.append("it plays its episodes with a program of its own, so only its tasks are checked")
    elif tasks:
        await _play(registry, environment, tasks, config, report, say)
    elif not report.findings:
        report.add("no_tasks", "test", "there is no task that can be played")
    _set_allowed(report, config.allowed)
    report.seconds = time.monotonic() - began
    return report


def _tasks(environment: Environment[Any], config: CheckConfig, report: Report) -> list[Task]:
    try:
        tasks = first_tasks(environment, "test", config.seed, config.num_tasks, config.task_s)
        if len(tasks) < config.num_tasks and "train" in environment.splits:
            more = first_tasks(environment, "train", config.seed, config.num_tasks - len(tasks), config.task_s)
            tasks += more
            report.notes.append(f"{len(tasks)} tasks are played, {len(more)} of the train split")
    except UserError:  # a package or a file is missing
        raise
    except Exception as error:  # plugin code: anything may come
        report.add_error("tasks of test", "the tasks cannot be drawn", error)
        return []
    return tasks


async def _play(
    registry: PluginRegistry,
    environment: Environment[Any],
    tasks: Sequence[Task],
    config: CheckConfig,
    report: Report,
    say: Callable[[str], None],
) -> None:
    async with Stage.open(
        environment,
        tasks,
        registry,
        rewards=config.rewards,
        sandbox=config.sandbox,
        sandbox_options=config.sandbox_options,
        config=RolloutConfig(cut_turns="score", env_timeout_s=config.env_timeout_s, max_retries=0),
        say=say,
    ) as stage:
        report.sandbox = stage.sandbox.name if stage.sandbox is not None else ""
        judge = Judge(report, stage.scorer.floor)
        try:
            await _play_on(stage, tasks, judge, config, say)
        except* Hangs:
            judge.faults("played", "", stage.hung)
            report.notes.append("calls hang, so nothing more was played")
    if config.has("processes") and not report.hangs:
        say("asking two other processes")
        await _ask_processes(environment, config, report)


async def _play_on(
    stage: Stage, tasks: Sequence[Task], judge: Judge, config: CheckConfig, say: Callable[[str], None]
) -> None:
    say("playing the oracle")
    solutions, schemas = await solve(stage, tasks, judge, together=config.has("together"))
    if config.has("prompts"):
        check_prompts(tasks, schemas, config.max_tokens, judge.report)
    attempts = make_attempts(solutions, has_tools=bool(schemas))
    chosen = [name for name in PROBES if config.has(name)]
    for number, name in enumerate(chosen, start=1):
        say(f"probe {name} ({number} of {len(chosen)})")
        await play_probe(stage, name, attempts, judge)
    judge.compare()


async def _ask_processes(environment: Environment[Any], config: CheckConfig, report: Report) -> None:
    try:
        here = check_again(environment, config.seed, report, config.task_s)
    except Exception as error:  # plugin code: anything may come
        report.add_error("tasks", "asked again, tasks() raises", error)
        return
    request = ChildRequest(
        name=config.name,
        options=config.options,
        rewards=config.rewards,
        seed=config.seed,
        counts={split: len(lines) for split, lines in here.items()},
        sandbox=report.sandbox or "auto",
        sandbox_options=config.sandbox_options,
    )
    await check_processes(request, here, report)


def _set_allowed(report: Report, allowed: Collection[str]) -> None:
    report.allowed = [found for found in report.findings if {found.kind, f"{found.kind}:{found.where}"} & set(allowed)]
    report.findings = [found for found in report.findings if found not in report.allowed]
