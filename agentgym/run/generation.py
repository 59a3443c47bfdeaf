"""The generators of a job that only samples: one policy, whose weights do not change."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from agentgym.generators.select import settle_engine, why_not_native
from agentgym.generators.service import GeneratorService
from agentgym.models.architecture import read_architecture
from agentgym.recipe import Recipe
from agentgym.rollout.activity import Activity
from agentgym.run.hosts import runtime_of
from agentgym.run.places import settle_generators
from agentgym.runs.report import Reporter


@asynccontextmanager
async def started_generators(
    recipe: Recipe, model_path: Path, reporter: Reporter, *, name: str, log_dir: Path, activity: Activity
) -> AsyncIterator[GeneratorService]:
    """They answer inside; afterwards all that was started is gone. name: of the run, for its weights' place."""
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(runtime_of(recipe, log_dir.parent, model_path, reporter.note))
        store = await recipe.weights.open(name, runtime=runtime)
        stack.push_async_callback(store.close)
        reporter.phase(f"starting {recipe.generator.replicas} generator replicas")
        engine = settle_engine(recipe.generator, str(model_path), reporter.note)
        architecture = None if why_not_native(str(model_path)) else read_architecture(model_path)
        config = settle_generators(replace(recipe, generator=engine), architecture).generator
        generator = GeneratorService(config=config, store=store, model_path=str(model_path), runtime=runtime)
        stack.push_async_callback(generator.close)
        with activity.doing("start"):
            await generator.start()
        yield generator
