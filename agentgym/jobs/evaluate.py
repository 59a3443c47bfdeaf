"""The evaluation job: play a checkpoint, or any Hugging Face folder, on held-out tasks, and save what happened."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace

from agentgym.actors.runtime import Runtime
from agentgym.evals.play import EvalResult, EvalSetup, play_eval, summarize
from agentgym.generators.select import settle_engine, why_not_native
from agentgym.generators.service import GeneratorService
from agentgym.hooks import PluginRegistry
from agentgym.jobs.gym import Gym
from agentgym.jobs.metrics import counts_since
from agentgym.jobs.places import settle_generators
from agentgym.jobs.watchdog import watched
from agentgym.models.architecture import read_architecture
from agentgym.models.resolve import resolve_model, weights_mark
from agentgym.recipe import Recipe
from agentgym.rollout.agent_faults import agent_faults
from agentgym.rollout.garbage import rare_collections
from agentgym.rollout.generator import Generator
from agentgym.rollout.tasks import held_out_tasks
from agentgym.runs.evaluations import EvaluationFiles
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter
from agentgym.types import Episode

NUM_REPORTS = 10  # of progress, in one evaluation


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
        engine = settle_engine(recipe.generator, str(model_path), reporter.note)
        architecture = None if why_not_native(str(model_path)) else read_architecture(model_path)
        config = settle_generators(replace(recipe, generator=engine), architecture).generator
        generator = GeneratorService(config=config, store=store, model_path=str(model_path), runtime=runtime)
        stack.push_async_callback(generator.close)
        with gym.activity.doing("start"):
            await generator.start()
        return await measure(
            gym,
            generator,
            folder,
            reporter,
            step=step,
            name=name or recipe.model.path,
            weights=weights_mark(model_path),
            resume=resume,
        )


async def measure(
    gym: Gym,
    generator: Generator,
    folder: RunFolder,
    reporter: Reporter,
    *,
    step: int,
    name: str,
    num_tasks: int | None = None,
    weights: str = "",
    resume: bool = False,
) -> EvalResult:
    """Play the weights that the generators hold.

    num_tasks: instead of eval.tasks. weights: what identifies them, if a file holds them. The rest: see `evaluate`.
    """
    config = gym.recipe.eval
    tasks = held_out_tasks(gym.environment, num_tasks or config.tasks)
    setup = EvalSetup.of(
        gym.environment, tasks, samples_per_task=config.samples_per_task, seed=config.seed, greedy=config.greedy
    )
    files = EvaluationFiles(folder, step, weights)
    known = files.begin(setup.to_mapping(), resume=resume)
    total = len(tasks) * config.samples_per_task
    done = len(known)
    reporter.phase(f"measuring {name} on {len(tasks)} held-out tasks, {config.samples_per_task} times each")
    if known:
        reporter.note(f"{len(known)} of {total} episodes were played before")

    def ended(number: int, sample: int, episode: Episode) -> None:
        nonlocal done
        files.add(number, sample, episode)
        done += 1
        if done * NUM_REPORTS // total > (done - 1) * NUM_REPORTS // total and done < total:
            reporter.phase(f"{done} of {total} episodes played")  # no success: short episodes end first

    rows = await play_eval(gym.player(generator), tasks, setup, known=known, ended=ended)
    files.save_episodes(rows)
    if faults := agent_faults([episode for row in rows for episode in row]):
        reporter.note(faults)
    result = summarize(rows, name)
    if gym.backend is not None:
        metrics = gym.sandbox_metrics()
        metrics |= counts_since(metrics, {})
        result = replace(result, sandbox=gym.backend.name, sandbox_metrics=metrics)
    files.save_result(setup.to_mapping(), result.to_mapping())
    return result
