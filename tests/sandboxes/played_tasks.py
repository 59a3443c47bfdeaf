"""Tasks with a container each, played by their oracle or by commands of the test's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from agentgym.env import Environment
from agentgym.testing import play
from agentgym.types import Episode, Message
from agentgym_sandboxes.docker.backend import DockerBackend

DONE: Message = {"role": "assistant", "content": "It is done."}


def running(*commands: str) -> list[Message]:
    """What an agent says that runs these and is done."""
    calls = [{"type": "function", "function": {"name": "bash", "arguments": {"command": one}}} for one in commands]
    return [*({"role": "assistant", "content": "", "tool_calls": [call]} for call in calls), DONE]


async def played(
    environment: Environment[Any], sandbox: DockerBackend, says: Sequence[tuple[str, Any]], *, at_once: int = 2
) -> list[Episode]:
    """says: by a task's id; None is its oracle's script."""
    tasks = {task.task_id: task for task in environment.tasks("test")}
    slots = asyncio.Semaphore(at_once)

    async def one(name: str, script: Any) -> Episode:
        async with slots:
            return await play(environment, tasks[name], script or environment.solve(tasks[name]), sandbox=sandbox)

    async with asyncio.TaskGroup() as playing:
        found = [playing.create_task(one(name, script)) for name, script in says]
    return [task.result() for task in found]
