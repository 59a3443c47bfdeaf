"""The training job: settle the recipe, open what it needs, run its loop, close everything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from agentgym.hooks import PluginRegistry
from agentgym.loops import async_rl, sft
from agentgym.loops.async_rl import TrainingLoop
from agentgym.recipe import Recipe
from agentgym.run.async_run import AsyncRun
from agentgym.run.changes import go_on, kept_changes
from agentgym.run.control import until_noticed
from agentgym.run.ending import TrainResult, measure_end
from agentgym.run.resume import StartPoint, find_start
from agentgym.run.session import open_session
from agentgym.run.settle import settle
from agentgym.run.sft_run import SftRun
from agentgym.run.sinks import open_sinks
from agentgym.runs.changes import Change
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter


async def train(
    recipe: Recipe,
    folder: RunFolder,
    reporter: Reporter,
    *,
    resume: bool = False,
    from_step: int | None = None,
    registry: PluginRegistry | None = None,
    notice: asyncio.Event | None = None,
    given: Collection[str] = (),
    change_loop: Callable[[TrainingLoop], None] = lambda loop: None,
) -> TrainResult:
    """Train to the last step, by the recipe's loop. On any end, everything that was started is gone when this returns.

    from_step: where to resume; the newest whole checkpoint and the steps of the journal after it otherwise. notice:
    once it is set, the run saves between two steps and ends. given: settings that the recipe has for this resume, in
    place of what they were changed to while the run went on. change_loop: called with the loop before it runs, for
    experiments. Raises UserError before anything is started for what the user must fix; InfraError for
    what broke.
    """
    settled = settle(recipe, folder.path, reporter.note, registry)
    start, changes = StartPoint(), list[Change]()
    if resume:
        changes = kept_changes(folder, given)
        start = find_start(settled, folder, reporter.note, from_step, changes)
    if recipe.sft is not None:
        run = await SftRun.begin(settled, folder, reporter, start, notice)
        async with open_sinks(settled, folder.path) as run.sinks:
            return await sft.train(run)
    if start.checkpoint is not None and start.checkpoint >= recipe.loop.steps:
        return await measure_end(settled, folder, reporter, start.state, recipe.loop.steps)
    settled = go_on(settled, folder, start.position.step, given, reporter.note)
    later = [one for one in changes if one.step > start.position.step]
    lock, begun = asyncio.Lock(), list[AsyncRun]()

    async def work() -> TrainResult:
        """All of it in one task: some of what is opened must be closed by the task that opened it."""
        async with open_session(settled, folder, reporter, start) as session:
            begun.append(await AsyncRun.begin(session, lock, later))
            return await async_rl.train(begun[0], change_loop)

    async def leave() -> TrainResult:
        reporter.note("asked to leave: saves as soon as the step ends")
        await lock.acquire()
        if begun:
            return await begun[0].leave()
        reason, first = "preempted before there was anything to save", start.state.first_eval
        return TrainResult(run_dir=folder.path, steps=0, first=first, last=None, difference=None, stopped=reason)

    return await until_noticed(work(), notice or asyncio.Event(), leave)
