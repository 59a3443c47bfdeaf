"""The runtime of a job, on the hosts of its recipe."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from agentgym.actors.host_care import check_model, open_runtime
from agentgym.actors.runtime import Runtime
from agentgym.recipe import Recipe


@asynccontextmanager
async def runtime_of(
    recipe: Recipe, folder: Path, model_path: Path, note: Callable[[str], None]
) -> AsyncIterator[Runtime]:
    """folder: of the run, which all hosts must see; its `logs` get what the processes print.

    Raises UserError, with the host's name, for a host that can't take part.
    """
    async with open_runtime(
        launcher=recipe.launcher,
        places=recipe.hosts,
        log_dir=folder / "logs",
        patience_s=recipe.patience_s,
        shared=[folder],
        note=note,
    ) as runtime:
        await check_model(runtime, model_path)
        yield runtime
