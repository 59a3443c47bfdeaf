"""The evaluation job of a policy that a server holds: no model, no torch, no process of ours but the sandbox's."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from pathlib import Path

from agentgym.errors import UserError
from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry
from agentgym.policies.by_messages import MessagePlayer
from agentgym.policies.outside.cache import AnswerCache
from agentgym.policies.outside.config import served_name
from agentgym.policies.outside.openai_server import OpenAIServer
from agentgym.policies.outside.policy import ServedPolicy
from agentgym.recipe import Recipe
from agentgym.run.gym import Gym
from agentgym.run.measure import measure
from agentgym.run.settle import settle_served
from agentgym.run.watchdog import watched
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter

CACHE = ".answers"


async def evaluate_served(
    recipe: Recipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    name: str = "",
    resume: bool = False,
    registry: PluginRegistry | None = None,
) -> EvalResult:
    """Evaluates a `model.path` that begins with `openai:`, as `evaluate.evaluate` does."""
    async with AsyncExitStack() as stack:
        cache = AnswerCache(cache_folder(recipe, folder.path), recipe.policy.url, by=folder.name)
        policy = open_policy(recipe, cache, reporter)
        stack.push_async_callback(policy.server.close)
        reporter.phase(f"asking {recipe.policy.url}")
        reporter.note(await policy.check())
        gym = await Gym.open(settle_served(recipe, registry), reporter, training=False)
        stack.push_async_callback(gym.close)
        if gym.capabilities is not None:
            folder.save_sandbox(gym.capabilities)
        await stack.enter_async_context(watched(gym.activity))
        player = MessagePlayer(
            environment=gym.environment,
            scorer=gym.scorer,
            config=recipe.rollout,
            sandbox=gym.sandbox,
            activity=gym.activity,
            policy=policy,
        )
        result = await measure(gym, player, folder, reporter, step=0, name=name or recipe.model.path, resume=resume)
        for line in report(policy, result):
            reporter.note(line)
        return result


async def check_server(recipe: Recipe, reporter: Reporter) -> str:
    """Ask the recipe's server for its models, and its model for a few tokens. Raises UserError, InfraError."""
    policy = open_policy(recipe, AnswerCache(None, recipe.policy.url), reporter)
    try:
        return await policy.check(ask=True, max_tokens=recipe.rollout.max_turn_tokens)
    finally:
        await policy.server.close()


def open_policy(recipe: Recipe, cache: AnswerCache, reporter: Reporter) -> ServedPolicy:
    """Contacts nothing. Raises UserError for a key or package that is missing."""
    model = served_name(recipe.model.path)
    assert model is not None
    if not model:
        raise UserError("the model 'openai:' has no name; give one that the server has, as in openai:qwen3-8b")
    config = recipe.policy
    variable = config.key_variable
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise UserError(
            f"the environment variable {variable} is empty or not set; put the key for {config.url} into it, or name "
            "another one with --api-key-env NAME. Another server than OpenAI's is given with --base-url URL"
        )
    server = OpenAIServer(config.url, key, key_variable=variable, timeout_s=config.timeout_s)
    return ServedPolicy(model=model, config=config, server=server, cache=cache, say=reporter.note)


def cache_folder(recipe: Recipe, evaluation: Path) -> Path | None:
    """Where answers are kept. A server in this network may hold another model tomorrow, at the same address."""
    given = recipe.policy.cache
    if given == "off":
        return None
    if given != "auto":
        return Path(given)
    return evaluation / "answers" if recipe.policy.is_near else Path(recipe.logging.evals_dir) / CACHE


def report(policy: ServedPolicy, result: EvalResult) -> list[str]:
    """What asking took, where something is worth a word."""
    counts = policy.counts
    lines = []
    if counts["retries"] or counts["lost"]:
        lines.append(f"{counts['retries']} requests were sent again, {counts['lost']} had no answer in the end")
    if result.usage.get("turns_estimated"):
        lines.append("the server does not count tokens: those of the table are estimated from characters")
    return lines
