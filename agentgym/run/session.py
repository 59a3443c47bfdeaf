"""What a run has open: the gym, the engines, the metric sinks. `agentgym train` and loops over services share it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from agentgym.observed import OBSERVED
from agentgym.run.background import Background
from agentgym.run.engines import Engines, start_engines
from agentgym.run.gym import Gym
from agentgym.run.resume import StartPoint
from agentgym.run.settle import Settled
from agentgym.run.sinks import Sinks, open_sinks
from agentgym.runs.folder import RunFolder
from agentgym.runs.report import Reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Everything here is started, and at the weights of the start point."""

    settled: Settled
    folder: RunFolder
    reporter: Reporter
    start: StartPoint
    gym: Gym
    sinks: Sinks
    background: Background
    engines: Engines


@asynccontextmanager
async def open_session(
    settled: Settled, folder: RunFolder, reporter: Reporter, start: StartPoint
) -> AsyncIterator[Session]:
    """Start them all; on any end they are gone when this returns. folder: of the run, open for writing.

    Raises UserError before anything is started for what the user must fix; InfraError for what broke.
    """
    OBSERVED.take()  # of an earlier run in this process
    async with AsyncExitStack() as stack:
        gym = await Gym.open(settled, reporter, training=True)
        stack.push_async_callback(gym.close)
        gym.record_sandbox(folder)
        sinks = await stack.enter_async_context(open_sinks(settled, folder.path))
        engines = await start_engines(settled, folder, reporter, gym, start, stack)
        background = Background()
        stack.push_async_callback(background.close)
        stack.callback(gym.activity.begin, "stop")  # called first of all when the run ends
        yield Session(
            settled=settled,
            folder=folder,
            reporter=reporter,
            start=start,
            gym=gym,
            sinks=sinks,
            background=background,
            engines=engines,
        )
