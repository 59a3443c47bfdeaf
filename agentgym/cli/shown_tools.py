"""The tools that an agent has in a task, for `agentgym envs show`: only an episode that has started knows them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from agentgym.env import Environment, EpisodeContext
from agentgym.errors import UserError
from agentgym.tables.environments import has_tools
from agentgym.tools import Schema
from agentgym.types import Task


def tools_of(environment: Environment[Any], task: Task) -> Sequence[Schema]:
    """The schemas of a task's tools; none where the environment has no tools, or the task needs a sandbox first.

    Raises UserError for an environment that cannot start the task.
    """
    if not has_tools(environment) or task.sandbox is not None:
        return ()
    return asyncio.run(_asked(environment, task))


def tool_line(schema: Schema) -> str:
    """`buy(item, count): Buy an item.`"""
    function = schema["function"]
    assert isinstance(function, Mapping)
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    names = ", ".join(properties) if isinstance(properties, Mapping) else ""
    return f"{function['name']}({names}): {function.get('description', '')}"


async def _asked(environment: Environment[Any], task: Task) -> Sequence[Schema]:
    context: EpisodeContext[Any] = EpisodeContext(task=task, messages=list(task.prompt))
    try:
        try:
            context.state = await environment.start(context)
            tools = await environment.toolbox(context)
        finally:
            await environment.finish(context)
    except Exception as error:  # plugin code: anything may come
        raise UserError(
            f"task {task.task_id} cannot be started to see its tools: {type(error).__name__}: {error}"
        ) from error
    return tools.schemas() if tools is not None else ()
