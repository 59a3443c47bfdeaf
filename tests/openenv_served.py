"""Environments of ours as OpenEnv servers in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from agentgym.env import Environment
from agentgym.hooks import PluginRegistry
from agentgym.http_server import listen
from agentgym.rollout.environments import build_environment
from agentgym.rollout.tasks import drawn
from agentgym.rollout.text_episode import TextGameConfig
from agentgym.serve.openenv_app import OpenEnvApp, OpenEnvConfig, serve_openenv
from agentgym.types import Task

REGISTRY = PluginRegistry.discover()


@contextlib.asynccontextmanager
async def served(name: str, *, num_tasks: int = 8, **config: Any) -> AsyncIterator[tuple[str, OpenEnvApp]]:
    """The address of a server, without its scheme."""
    listening = listen("127.0.0.1", [0])
    started: asyncio.Future[OpenEnvApp] = asyncio.get_running_loop().create_future()
    game = TextGameConfig(name=name, num_tasks=num_tasks)
    job = asyncio.create_task(serve_openenv(REGISTRY, game, OpenEnvConfig(**config), listening, started.set_result))
    await asyncio.wait((job, started), return_when=asyncio.FIRST_COMPLETED)
    if job.done():
        job.result()
    try:
        yield f"127.0.0.1:{listening.getsockname()[1]}", started.result()
    finally:
        job.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await job


def first(name: str) -> tuple[Environment[Any], list[Task]]:
    environment = build_environment(REGISTRY, name, {})
    return environment, [task for task, _ in zip(drawn(environment, "train"), range(8), strict=False)]
