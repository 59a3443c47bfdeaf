"""Policies that answer outside of a run: at an endpoint, or to someone who chats and plays."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agentgym.hooks import PluginRegistry
from agentgym.policies.by_hand import Table
from agentgym.policies.conversation import CallHandler
from agentgym.policies.free_handler import FreeHandler
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import served_name
from agentgym.policies.outside.handler import ServedHandler
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.rollout.environments import build_environment
from agentgym.rollout.sandboxes import choose_sandbox
from agentgym.rollout.scoring import Scorer
from agentgym.rollout.tasks import drawn
from agentgym.run.engines import started_generators
from agentgym.run.evaluate import open_policy
from agentgym.run.gym import open_renderer
from agentgym.run.settle import settle_sampling
from agentgym.runs.report import Reporter
from agentgym.types import Split, Task

SERVE_PREFIX = "agentgym-serve-"
CHAT_PREFIX = "agentgym-chat-"
MAX_TASKS = 1024  # of a split that can be chosen from; it may be endless


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
    from agentgym.serve.endpoint import Endpoint  # here, not above: chatting does not need its packages

    async with AsyncExitStack() as stack:
        endpoint = Endpoint(bind, model=model)
        endpoint.listen()
        stack.callback(endpoint.unlisten)
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=SERVE_PREFIX)))
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """tasks: of one split, in its order."""

    table: Table
    tasks: Sequence[Task]


@asynccontextmanager
async def opened_handler(recipe: Recipe, registry: PluginRegistry, reporter: Reporter) -> AsyncIterator[CallHandler]:
    """The policy of the recipe, here or behind a server. Raises UserError for one that is not there."""
    async with AsyncExitStack() as stack:
        if served_name(recipe.model.path) is not None:
            policy = open_policy(recipe.model, recipe.policy, AnswerCache(None, recipe.policy.url), reporter)
            stack.push_async_callback(policy.server.close)
            reporter.note(await policy.check())
            yield ServedHandler(policy, recipe.rollout.max_turn_tokens)
            return
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=CHAT_PREFIX)))
        settled = settle_sampling(recipe, scratch, reporter.note, registry)
        renderer = open_renderer(recipe.model, settled.model, registry)
        generators = started_generators(
            settled, reporter, name=scratch.name, log_dir=scratch / "logs", activity=Activity()
        )
        generator = await stack.enter_async_context(generators)
        yield FreeHandler(renderer, generator, max_tokens=recipe.generator.max_model_len)


@asynccontextmanager
async def opened_table(
    recipe: Recipe, handler: CallHandler, registry: PluginRegistry, reporter: Reporter, split: Split
) -> AsyncIterator[Played]:
    """The recipe's environment with its sandbox, if some task needs one. Raises UserError."""
    environment = build_environment(registry, recipe.env.name, recipe.env.options)
    tasks = list(islice(drawn(environment, split), MAX_TASKS))
    async with AsyncExitStack() as stack:
        scorer = await stack.enter_async_context(Scorer.of(environment, registry, recipe.rewards))
        sandbox = await choose_sandbox(recipe.sandbox.name, recipe.sandbox.options, tasks, registry, reporter.note)
        if sandbox is not None:
            reporter.phase(f"starting the {sandbox.name} sandbox")
            await sandbox.start()
            stack.push_async_callback(sandbox.close)
        table = Table(
            environment=environment,
            scorer=scorer,
            config=recipe.rollout,
            sandbox=sandbox,
            handler=handler,
            greedy=recipe.eval.greedy,
        )
        yield Played(table=table, tasks=tasks)
