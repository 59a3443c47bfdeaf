"""The evaluation job: play a checkpoint, or any Hugging Face folder, on held-out tasks, and save what happened."""

from __future__ import annotations

from contextlib import AsyncExitStack

from agentgym.actors.runtime import Runtime
from agentgym.evals.play import EvalResult
from agentgym.generators.select import settle_engine
from agentgym.generators.service import GeneratorService
from agentgym.hooks import PluginRegistry
from agentgym.jobs.gym import Gym
from agentgym.jobs.measure import measure
from agentgym.jobs.watchdog import watched
from agentgym.models.resolve import resolve_model, weights_mark
from agentgym.recipe import Recipe
from agentgym.rollout.garbage import rare_collections
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter


async def evaluate(
    recipe: Recipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    step: int = 0,
    name: str = "",
    resume: bool = False,
    registry: PluginRegistry | None = None,
) -> EvalResult:
    """Success of `recipe.model` on the first `eval.tasks` held-out tasks, each played `eval.samples_per_task` times.

    step: of the weights, under which the folder has the episodes. name: of the policy in the result. resume: an
    interrupted evaluation of these weights is continued.
    """
    async with AsyncExitStack() as stack:
        model_path = resolve_model(recipe.model.path, folder.path, random_weights=recipe.model.random_weights)
        found = registry or PluginRegistry.discover(recipe.plugins.disabled)
        gym = await Gym.open(recipe, model_path, found, reporter, training=False)
        stack.push_async_callback(gym.close)
        if gym.capabilities is not None:
            folder.save_sandbox(gym.capabilities)
        stack.enter_context(rare_collections())
        await stack.enter_async_context(watched(gym.activity))
        runtime = Runtime(log_dir=folder.path / "logs", launcher=recipe.launcher, patience_s=recipe.patience_s)
        await stack.enter_async_context(runtime)
        store = await recipe.weights.open(folder.name, runtime=runtime)
        stack.push_async_callback(store.close)
        reporter.phase(f"starting {recipe.generator.replicas} generator replicas")
        config = settle_engine(recipe.generator, str(model_path), reporter.note)
        generator = GeneratorService(config=config, store=store, model_path=str(model_path), runtime=runtime)
        stack.push_async_callback(generator.close)
        with gym.activity.doing("start"):
            await generator.start()
        return await measure(
            gym,
            gym.player(generator),
            folder,
            reporter,
            step=step,
            name=name or recipe.model.path,
            weights=weights_mark(model_path),
            resume=resume,
        )
