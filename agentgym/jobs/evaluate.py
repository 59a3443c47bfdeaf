"""The evaluation job: play a checkpoint, or any Hugging Face folder, on held-out tasks."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

from agentgym.actors.runtime import Runtime
from agentgym.evals.play import EvalResult, play_eval, summarize
from agentgym.generators.service import GeneratorService
from agentgym.hooks import PluginRegistry
from agentgym.jobs.gym import Gym
from agentgym.jobs.metrics import counts_since
from agentgym.models.resolve import resolve_model
from agentgym.recipe import Recipe
from agentgym.rollout.tasks import held_out_tasks
from agentgym.runs.report import Reporter


async def evaluate(recipe: Recipe, reporter: Reporter, *, registry: PluginRegistry | None = None) -> EvalResult:
    """Success of `recipe.model` on the first `eval.tasks` held-out tasks, each played `eval.samples_per_task` times."""
    async with AsyncExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentgym-eval-")))
        model_path = resolve_model(recipe.model.path, scratch, random_weights=recipe.model.random_weights)
        found = registry or PluginRegistry.discover(recipe.plugins.disabled)
        gym = await Gym.open(recipe, model_path, found, reporter, training=False)
        stack.push_async_callback(gym.close)
        runtime = await stack.enter_async_context(Runtime(log_dir=scratch / "logs", launcher=recipe.launcher))
        store = await recipe.weights.open("eval", runtime=runtime)
        stack.push_async_callback(store.close)
        reporter.phase(f"starting {recipe.generator.replicas} generator replicas")
        generator = GeneratorService(config=recipe.generator, store=store, model_path=str(model_path), runtime=runtime)
        stack.push_async_callback(generator.close)
        await generator.start()
        tasks = held_out_tasks(gym.environment, recipe.eval.tasks)
        reporter.phase(f"playing {len(tasks)} held-out tasks, {recipe.eval.samples_per_task} times each")
        episodes = await play_eval(
            gym.player(generator), tasks, samples_per_task=recipe.eval.samples_per_task, seed=recipe.eval.seed
        )
        result = summarize(episodes, recipe.model.path)
        if gym.backend is None:
            return result
        metrics = gym.sandbox_metrics()
        metrics |= counts_since(metrics, {})
        return replace(result, sandbox=gym.backend.name, sandbox_metrics=metrics)
