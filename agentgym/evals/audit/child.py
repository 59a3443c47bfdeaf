"""Run as a process of its own: draws tasks and plays a few, and prints what it saw as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any, cast

from agentgym.env import Environment
from agentgym.evals.audit.attempt import always
from agentgym.evals.audit.oracle import Solution, has_oracle, solving, written
from agentgym.evals.audit.repeats import NUM_PLAYED, ChildRequest, tasks_seen
from agentgym.evals.audit.stage import Says, Stage
from agentgym.evals.audit.stream import first_tasks
from agentgym.evals.audit.watched import Watched
from agentgym.hooks import PluginRegistry
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.environments import build_environment
from agentgym.types import Json, Message, Task

TEXTS = ("", "A text that is no answer: 1 2 3.", '{"answer": "b"}')


async def see(request: ChildRequest) -> dict[str, object]:
    """What `Seen` has."""
    registry = PluginRegistry.discover()
    environment = build_environment(registry, request.name, request.options)
    tasks = tasks_seen(environment, request.seed, request.counts)
    scores: dict[str, str] = {}
    if request.sandbox is not None:
        played = first_tasks(environment, "test", request.seed, NUM_PLAYED)
        async with Stage.open(
            environment,
            played,
            registry,
            rewards=request.rewards,
            sandbox=request.sandbox,
            sandbox_options=request.sandbox_options,
            config=RolloutConfig(cut_turns="score"),
            say=lambda text: None,
        ) as stage:
            parts: list[tuple[str, Task, Says]] = []
            for number, task in enumerate(played):
                if has_oracle(environment, task):
                    solution = Solution(task, is_oracle=True)
                    parts.append((f"right {task.task_id}", task, partial(_oracle, environment, solution)))
                elif said := written(task).text:
                    parts.append((f"right {task.task_id}", task, always(said)))
                text = TEXTS[number % len(TEXTS)]
                parts.append((f"{text!r} in {task.task_id}", task, always(text)))
            episodes, _ = await stage.play_all([(task, says) for _, task, says in parts])
        for (key, _, _), one in zip(parts, episodes, strict=True):
            episode = one.episode
            scores[key] = f"reward {episode.reward}, success {episode.known_success}, {episode.outcome}"
    return {"tasks": tasks, "scores": scores}


def _oracle(environment: Environment[Any], solution: Solution, watched: Watched) -> Iterator[Message]:
    return solving(environment, solution)


def main() -> None:
    given = cast(dict[str, Json], json.load(sys.stdin))
    request = ChildRequest(**given)  # type: ignore[arg-type]
    print("\n" + json.dumps(asyncio.run(see(request))))


if __name__ == "__main__":
    main()
