"""Demonstrations by an environment's own oracle: `Environment.solve`, played so that the environment answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentgym.env import Environment, EpisodeContext
from agentgym.errors import UserError
from agentgym.plugin_errors import detail_of
from agentgym.policies.scripted import play_script
from agentgym.rl.demonstrations import Demonstration
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.scoring import Scorer
from agentgym.sandbox import Sandbox
from agentgym.types import Episode, ErrorRecord, Json, Task

AT_ONCE = 32  # episodes
SHOWN = 3  # episodes that went wrong, in the note


async def solve_tasks(
    environment: Environment[Any],
    tasks: Sequence[Task],
    *,
    scorer: Scorer,
    sandbox: Sandbox | None,
    config: RolloutConfig,
    progress: Callable[[int], None] = lambda done: None,
) -> tuple[list[Demonstration], str]:
    """Conversations that succeed, in the order of the tasks, and a line about the share of the others.

    Those are episodes that earn the full reward, or whose environment says that the goal was reached.
    Raises UserError where the environment has no oracle, or none of its solutions earns the full reward.
    """
    if not tasks or not _solves(environment, tasks[0]):
        raise UserError(
            f"environment {environment.name!r} does not solve its own tasks: it has no `solve`. Imitate files "
            "(--data) or saved episodes (--from) instead, or write `solve`: docs/writing_environments.md"
        )
    slots, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(task: Task) -> tuple[Episode, tuple[Mapping[str, Json], ...]]:
        nonlocal done
        shown: list[Mapping[str, Json]] = []

        def started(context: EpisodeContext[Any]) -> None:
            if context.tools is not None:
                shown.extend(context.tools.schemas())

        async with slots:
            try:
                says = environment.solve(task)
                episode = await play_script(
                    environment,
                    task,
                    says if says is not None else (),
                    scorer=scorer,
                    sandbox=sandbox,
                    config=config,
                    started=started,
                )
            except Exception as error:  # of `solve`
                record = ErrorRecord(source="solve", kind=type(error).__name__, message=detail_of(error, environment))
                episode = Episode(episode_id=task.task_id, task=task, seed=0, error=record)
        done += 1
        progress(done)
        return episode, tuple(shown)

    async with asyncio.TaskGroup() as playing:
        played = [playing.create_task(one(task)) for task in tasks]
    results = [task.result() for task in played]
    return _chosen(environment, results, scorer.ceiling)


def _solves(environment: Environment[Any], task: Task) -> bool:
    try:
        return environment.solve(task) is not None
    except Exception:  # of the plugin: it is said with the task
        return True


def _chosen(
    environment: Environment[Any], results: Sequence[tuple[Episode, tuple[Mapping[str, Json], ...]]], full: float
) -> tuple[list[Demonstration], str]:
    right, wrong = [], []
    for episode, tools in results:
        if episode.reward is not None and (episode.success or episode.reward >= full - 1e-9):
            name = f"{environment.name}, {episode.task.task_id}"
            right.append(Demonstration(name=name, messages=tuple(episode.messages), tools=tools))
        else:
            wrong.append(episode)
    note = (
        f"{environment.name}: the oracle succeeds in {len(right)} of {len(results)} tasks; the full reward is {full:g}"
    )
    if wrong:
        note += f"; {len(wrong) / len(results):.1%} do not and are left out: " + ", ".join(map(_why, wrong[:SHOWN]))
    if not right:
        raise UserError(f"{note}. There is nothing to imitate")
    return right, note


def _why(episode: Episode) -> str:
    error = f" ({episode.error.source}: {episode.error.message:.120})" if episode.error else ""
    earned = "no reward" if episode.reward is None else f"{episode.reward:g}"
    return f"{episode.task.task_id} {earned}{error}"
