"""The installed environments: what they are, what their tasks look like."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.config_docs import options_of
from agentgym.env import Environment, default_weights
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.rollout.environments import build_environment
from agentgym.rollout.tasks import drawn
from agentgym.runs.records import pack
from agentgym.tables.problems import Problem
from agentgym.types import Json, Task

MAX_TASKS = 200
MAX_SKIPPED = 10_000


def env_rows(registry: PluginRegistry, allowed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The environments of the plugins, and those that were given by their import paths.

    error: why one can't be used; max_turns and version are None where only an instance knows them.
    """
    listed, rows = registry.listed("environments"), []
    for name in [*listed, *allowed]:
        offer = listed.get(name)
        row: dict[str, Any] = {
            "name": name,
            "distribution": offer[1].distribution if isinstance(offer, tuple) else "",
            "version": None,
            "summary": "",
            "requirements": "",
            "max_turns": None,
            "rewards": [],
            "options": [],
            "error": "",
        }
        try:
            factory = registry.environment(name)
            row |= {
                "version": getattr(factory, "version", None),
                "summary": first_line(factory),
                "requirements": getattr(factory, "requirements", ""),
                "max_turns": getattr(factory, "max_turns", None),
                "rewards": list(default_weights(factory)),
                "options": [option.as_json() for option in options_of(factory)],
            }
        except UserError as error:
            row["error"] = str(error)
        except Exception as error:  # plugin code: anything may come
            row["error"] = f"{type(error).__name__}: {error}"
        rows.append(row)
    return rows


def build(registry: PluginRegistry, allowed: Sequence[str], name: str, options: Mapping[str, Json]) -> Environment[Any]:
    """allowed: import paths. Raises Problem for an unknown name or option, and for what the environment raises."""
    known = [*registry.names("environments"), *allowed]
    if name not in known:  # of import paths only those that were allowed: another would run any file
        raise Problem.unknown("environment", name, known)
    try:
        return build_environment(registry, name, options)
    except UserError as error:
        raise Problem("invalid", str(error)) from None
    except Exception as error:  # plugin code: anything may come
        raise Problem("broken", f"{name} can't be built: {type(error).__name__}: {error}") from None


def env_json(
    registry: PluginRegistry, environment: Environment[Any], name: str, *, split: str, count: int, offset: int
) -> dict[str, Any]:
    """`/api/envs/{name}`: the environment, and some of its tasks with their answers. Raises Problem."""
    tasks = tasks_of(environment, split, offset + count + 1)[offset:]
    return {
        "name": name,
        "version": environment.version,
        "summary": first_line(registry.environment(name)) or first_line(environment),
        "requirements": environment.requirements,
        "options": [one.as_json() for one in options_of(registry.environment(name))],
        "splits": list(environment.splits),
        "max_turns": environment.max_turns,
        "has_tools": has_tools(environment),
        "rewards": [{"name": key, "weight": weight} for key, weight in default_weights(environment).items()],
        "tasks": [task_json(task) for task in tasks[:count]],
        "more": len(tasks) > count,
    }


def tasks_of(environment: Environment[Any], split: str, count: int) -> list[Task]:
    """The first tasks of a split. Raises Problem."""
    if split not in environment.splits:
        raise Problem.unknown("split", split, environment.splits)
    try:
        return list(itertools.islice(drawn(environment, split), count))
    except UserError as error:
        raise Problem("broken", f"the tasks can't be drawn: {error}") from None


def find_task(environment: Environment[Any], split: str, task_id: str) -> Task:
    """Among the first MAX_SKIPPED of a split; an empty id takes the first. Raises Problem."""
    for task in tasks_of(environment, split, MAX_SKIPPED if task_id else 1):
        if task_id in ("", task.task_id):
            return task
    known = [task.task_id for task in tasks_of(environment, split, 20)]
    raise Problem.unknown("task", task_id, known)


def task_json(task: Task) -> dict[str, Any]:
    return {
        "task_id": task.task_id,
        "split": task.split,
        "difficulty": task.difficulty,
        "prompt": list(task.prompt),
        "answer": pack(task.answer),
        "needs_sandbox": task.sandbox is not None,
    }


def has_tools(environment: Environment[Any]) -> bool:
    return environment.tools is not None or type(environment).toolbox is not Environment.toolbox


def first_line(thing: object) -> str:
    return (getattr(thing, "__doc__", None) or "").strip().partition("\n")[0]
