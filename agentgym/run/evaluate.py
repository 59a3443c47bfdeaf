"""The evaluation job: play a checkpoint, or any Hugging Face folder, on held-out tasks, and save what happened."""

from __future__ import annotations

from contextlib import AsyncExitStack

from agentgym.evals.play import EvalResult
from agentgym.hooks import PluginRegistry
from agentgym.models.resolve import weights_mark
from agentgym.recipe import Recipe
from agentgym.rollout.garbage import swept
from agentgym.run.engines import started_generators
from agentgym.run.gym import Gym
from agentgym.run.measure import measure
from agentgym.run.settle import settle_sampling
from agentgym.run.watchdog import watched
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
        settled = settle_sampling(recipe, folder.path, reporter.note, registry)
        gym = await Gym.open(settled, reporter, training=False)
        stack.push_async_callback(gym.close)
        if gym.capabilities is not None:
            folder.save_sandbox(gym.capabilities)
        await stack.enter_async_context(swept())
        await stack.enter_async_context(watched(gym.activity, logs=folder.path / "logs"))
        generators = started_generators(
            settled, reporter, name=folder.name, log_dir=folder.path / "logs", activity=gym.activity
        )
        generator = await stack.enter_async_context(generators)
        return await measure(
            gym,
            gym.player(generator),
            folder,
            reporter,
            step=step,
            name=name or recipe.model.path,
            weights=weights_mark(settled.model),
            resume=resume,
        )
