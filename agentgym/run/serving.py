"""Serves a checkpoint to whoever has the key: the endpoint, with one handler that knows of no episode."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from agentgym.hooks import PluginRegistry
from agentgym.policies.free_handler import FreeHandler
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.run.engines import started_generators
from agentgym.run.gym import open_renderer
from agentgym.run.settle import settle_sampling
from agentgym.runs.report import Reporter
from agentgym.serve.endpoint import Endpoint

PREFIX = "agentgym-serve-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Where a checkpoint answers. url: without /v1."""

    url: str
    model: str
    key: str


async def serve(
    recipe: Recipe,
    reporter: Reporter,
    *,
    bind: str,
    model: str,
    key: str = "",
    registry: PluginRegistry,
    ready: Callable[[Served], None],
) -> None:
    """Answer until cancelled. key: random unless it is given. ready: is called once it answers.

    Raises UserError for an address that is taken and for a model that is not there.
    """
    async with AsyncExitStack() as stack:
        endpoint = Endpoint(bind, model=model)
        endpoint.listen()
        stack.callback(endpoint.unlisten)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=PREFIX)))
        settled = settle_sampling(recipe, scratch, reporter.note, registry)
        renderer = open_renderer(recipe.model, settled.model, registry)
        generators = started_generators(
            settled, reporter, name=scratch.name, log_dir=scratch / "logs", activity=Activity()
        )
        generator = await stack.enter_async_context(generators)
        await stack.enter_async_context(endpoint)
        handler = FreeHandler(renderer, generator, max_tokens=recipe.generator.max_model_len)
        ready(Served(url=endpoint.url, model=model, key=endpoint.admit(handler, key=key)))
        try:
            await asyncio.Event().wait()
        finally:
            counts = endpoint.metrics()
            answers, requests = (counts.get(f"serve/{name}", 0) for name in ("answers", "requests"))
            reporter.note(f"answered {answers:g} of {requests:g} requests")
