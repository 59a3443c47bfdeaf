"""The rollout workers of a run as the controller has them: they get orders of groups, and groups come back."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import NoAnswer, ProcessDied, ProcessGroup
from agentgym.actors.remote import Routes
from agentgym.actors.runtime import Runtime
from agentgym.actors.service import Service
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError, UserError
from agentgym.generators.config import GeneratorConfig
from agentgym.generators.service import GeneratorService
from agentgym.rollout.activity import Activity, since
from agentgym.rollout.config import RolloutConfig
from agentgym.rollout.playing import Elsewhere, GroupOrder, Turns
from agentgym.run.rollout_worker import RolloutWorker, WorkerFigures, WorkerSetup
from agentgym.runs.in_flight import KeptTurn
from agentgym.types import Group

ANSWER_S = 10.0  # for what a worker answers at once, unless an environment blocks it
STOP_S = 30.0  # for its sandbox to be closed
T = TypeVar("T")


class RolloutWorkers:
    """Implements `agentgym.rollout.playing.Rollouts` with processes.

    An order goes to the worker with the fewest. One that dies is replaced, and its groups are played again from their
    beginning by others: a group is delivered once. Workers call the generators' replicas themselves; the controller
    reports which are up, before it gives an order that relies on it.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        *,
        rollout: RolloutConfig,
        generators: GeneratorConfig,
        generator: GeneratorService,
        runtime: Runtime,
        activity: Activity,
    ) -> None:
        """generators: their settings, whose limits of starts, probes and respawns hold for workers too."""
        self._setup = setup
        self._generator = generator
        self._runtime = runtime
        self._activity = activity
        settings = ServiceSettings(
            start_timeout_s=generators.start_timeout_s,
            stop_timeout_s=STOP_S,
            request_timeout_s=math.inf,  # an episode has limits of its own
            probe_every_s=generators.probe_every_s,
            probe_timeout_s=max(generators.probe_timeout_s, rollout.env_timeout_s),
            max_respawns=generators.max_respawns,
            min_replicas=1,
        )
        self._service = Service(
            "worker", self._launch, num_replicas=rollout.workers, settings=settings, admit=self._admit
        )
        self._start_s = generators.start_timeout_s
        self._numbers = itertools.count()
        self._routes, self._at = Routes(), 0
        self._sharing: set[asyncio.Task[None]] = set()
        self._opened: list[ProcessGroup[RolloutWorker]] = []
        self._seen: dict[str, WorkerFigures] = {}  # the last of each process group, dead ones too

    async def start(self) -> None:
        """Start the workers, which open the environment.

        Raises UserError or InfraError with the host's name for what they can't open.
        """
        await self._service.start()

    def connect(self) -> None:
        """The generators have started: from now on the workers follow them."""
        self._begin(self._follow())

    async def play(self, order: GroupOrder) -> Group:
        """See `Rollouts`."""
        self._share()
        number = next(self._numbers)

        def abandon(group: ProcessGroup[RolloutWorker]) -> None:
            group.broadcast(RolloutWorker.cancel, number)

        with self._activity.doing("rollout"):
            body = await self._service.route(RolloutWorker.play, order, number, self._at, abandon=abandon)
        group: Group = pickle.loads(body)
        return group

    async def turns(self) -> Turns:
        """See `Rollouts`. Of a worker that is dying nothing is known."""
        found: dict[int, Sequence[KeptTurn]] = {}
        for answer in (await self._ask(lambda group: group.call_one(RolloutWorker.turns, timeout_s=ANSWER_S))).values():
            found |= answer
        return found

    async def elsewhere(self) -> Elsewhere:
        """See `Rollouts`."""
        answers = await self._ask(lambda group: group.call_one(RolloutWorker.figures, timeout_s=ANSWER_S))
        times_s: dict[str, float] = {}
        for name, figures in answers.items():
            before = self._seen.get(name, WorkerFigures())
            for kind, seconds in since(dict(figures.times_s), dict(before.times_s)).items():
                times_s[kind] = max(times_s.get(kind, 0.0), seconds)
            self._seen[name] = figures
        own = self._service.get_metrics()
        return Elsewhere(
            times_s=times_s,
            sandbox=merged({name: one.sandbox for name, one in self._seen.items()}, answers),
            generator=merged({name: one.generator for name, one in self._seen.items()}, answers),
            workers={
                "workers/up": own["replicas_up"],
                "workers/respawns_total": own["respawns_total"],
                "workers/groups_again_total": own["retries_total"],
            },
        )

    def pids(self) -> list[int]:
        """The process ids of the workers that are up."""
        return self._service.pids()

    async def close(self) -> None:
        for task in self._sharing:
            task.cancel()
        await asyncio.gather(*self._sharing, return_exceptions=True)
        await self._service.close()

    def _launch(self, index: int, name: str) -> ProcessGroup[RolloutWorker]:
        options = ActorOptions(hosts="worker")
        return RolloutWorker.launch(name, name, self._setup, options=options, runtime=self._runtime)

    async def _admit(self, group: ProcessGroup[RolloutWorker]) -> None:
        """Raises what the worker can't open, with the host's name."""
        host = group.hosts[0]
        where = host.name if host.keeper else await group.call_one(RolloutWorker.describe, timeout_s=self._start_s)
        try:
            await group.call_one(RolloutWorker.open, timeout_s=self._start_s)
        except (ProcessDied, NoAnswer):
            raise
        except UserError as error:
            raise UserError(f"the rollout worker {group.name} on host {where}: {error}") from error
        except Exception as error:  # also of plugins
            said = f"{type(error).__name__}: {error}"
            raise InfraError(f"the rollout worker {group.name} on host {where} could not open: {said}") from error
        self._opened = [one for one in self._opened if not one.dead.done()] + [group]
        if self._at:
            await group.call_one(RolloutWorker.follow, self._routes, self._at, timeout_s=self._start_s)

    async def _follow(self) -> None:
        with suppress(InfraError):  # the generators have failed, which the last routes say
            while True:
                self._share()
                await self._generator.changed()
        self._share()

    def _share(self) -> None:
        """Send the workers the generators' routes where they have changed."""
        routes = self._generator.routes()
        if self._at and routes.names == self._routes.names:
            return
        self._routes, self._at = routes, self._at + 1
        for group in self._opened:
            self._begin(self._send(group, routes, self._at))

    async def _send(self, group: ProcessGroup[RolloutWorker], routes: Routes, at: int) -> None:
        with suppress(InfraError):  # it is dead: its successor gets them
            await group.call_one(RolloutWorker.follow, routes, at, timeout_s=None)

    def _begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._sharing.add(task)
        task.add_done_callback(self._sharing.discard)

    async def _ask(self, call: Callable[[ProcessGroup[RolloutWorker]], Awaitable[T]]) -> dict[str, T]:
        """The answers of the workers that give one, by the names of their processes."""
        groups = [one for one in self._opened if not one.dead.done()]
        answers = await asyncio.gather(*map(call, groups), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, InfraError):
                raise answer
        return {
            group.name: answer
            for group, answer in zip(groups, answers, strict=True)
            if not isinstance(answer, BaseException)
        }


def merged(seen: Mapping[str, Mapping[str, float]], live: Mapping[str, object]) -> dict[str, float]:
    """Figures of all workers: sums of what is counted, of the rest the largest of those that are alive.

    What was counted (`_total`) includes the dead.
    """
    found: dict[str, float] = {}
    for name, figures in seen.items():
        for key, value in figures.items():
            if key.endswith("_total") or (name in live and key in ("in_flight", "demand")):
                found[key] = found.get(key, 0.0) + value
            elif name in live:
                found[key] = max(found.get(key, 0.0), value)
    return found
