"""Replicas of an actor behind one address: requests are routed, retried after a death, and counted."""

from __future__ import annotations

import asyncio
import logging
import statistics
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import partial
from typing import Generic, TypeVar, TypeVarTuple

from agentgym.actors.by_name import NamedEndpoint, named_endpoint
from agentgym.actors.endpoint import Endpoint, LifecycleActor, method_name
from agentgym.actors.gate import Gate
from agentgym.actors.process_group import ProcessDied, ProcessGroup
from agentgym.actors.replica import Replica
from agentgym.actors.router import Router
from agentgym.actors.settings import ServiceSettings
from agentgym.errors import InfraError

log = logging.getLogger(__name__)

LATENCIES_KEPT = 1024
A = TypeVar("A", bound=LifecycleActor)
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Service(Generic[A]):
    """Every answer is delivered once: a call waits for one replica at a time.

    An error that an endpoint raises goes to the caller and leaves the replica alone. The requests of a replica
    that dies go to other ones. When one replica dies too often and fewer than settings.min_replicas are left, the
    whole service fails, and every call raises the reason.
    """

    def __init__(
        self,
        name: str,
        launch: Callable[[int, str], ProcessGroup[A]],
        *,
        num_replicas: int,
        max_replicas: int | None = None,
        settings: ServiceSettings | None = None,
        admit: Callable[[ProcessGroup[A]], Awaitable[None]] | None = None,
        starts: Gate | None = None,
        actor_class: type[A] | None = None,
    ) -> None:
        """launch, admit, starts: see Replica; launch gets the replica's index first.

        max_replicas: None is num_replicas. actor_class: for endpoints called by their names.
        """
        self._actor_class = actor_class
        self._session: ContextVar[Session[A] | None] = ContextVar("session", default=None)
        self.name = name
        self._settings = settings or ServiceSettings()
        self._num_replicas = num_replicas
        self._least = num_replicas if self._settings.min_replicas is None else self._settings.min_replicas
        self._starting = False
        self._router: Router[Replica[A]] = Router()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._supervisors: dict[Replica[A], asyncio.Task[None]] = {}  # of the replicas that are there
        self._leaving: set[asyncio.Task[None]] = set()
        self._latencies_s: deque[float] = deque(maxlen=LATENCIES_KEPT)
        self._requests = 0
        self._retries = 0
        self._grown = 0
        self._shrunk = 0
        self.lost = 0
        """Replicas that died too often, without which the service goes on."""
        self.replicas = [
            Replica(
                f"{name}{index}",
                partial(launch, index),
                settings=self._settings,
                admit=admit,
                changed=self._notify,
                starts=starts,
            )
            for index in range(max(num_replicas, max_replicas or 0))
        ]

    async def start(self) -> None:
        """Start num_replicas at the same time. Raises what the first failing one raised."""
        self._starting = True
        for replica in self.replicas[: self._num_replicas]:
            self._supervise(replica)
        try:
            while not all(replica.up for replica in self.replicas[: self._num_replicas]):
                await self.next_change()
        except BaseException:
            await self.close()
            raise
        self._starting = False

    @property
    def staying(self) -> list[Replica[A]]:
        """The replicas that are there and not leaving: up, starting, or starting again."""
        return [replica for replica in self._supervisors if not replica.leaving]

    @property
    def failed(self) -> bool:
        """Whether the service failed or was closed: every call raises the reason."""
        return self._failure is not None

    @property
    def failure(self) -> str:
        """The reason; empty while it works."""
        return "" if self._failure is None else str(self._failure) or type(self._failure).__name__

    @property
    def demand(self) -> int:
        """Requests at the replicas, and those of callers that wait for one."""
        return sum(replica.load for replica in self.replicas) + self._router.num_waiting

    def grow(self, count: int) -> bool:
        """Towards `count` replicas, at most max_replicas: one that is leaving stays, others are started.

        False where none is there to start, since those that left have not ended yet.
        """
        self._check_alive()
        leaving = [one for one, task in self._supervisors.items() if one.leaving and not task.cancelling()]
        parked = [replica for replica in self.replicas if replica not in self._supervisors]
        chosen = [*leaving, *parked][: max(0, count - len(self.staying))]
        for replica in chosen:
            replica.leaving = False
            if replica in parked:
                self._supervise(replica)
            self._grown += 1
            self._notify(replica)
        return bool(chosen)

    def shrink(self, holds: Callable[[Replica[A]], bool] = lambda replica: True) -> bool:
        """Let the replica with the fewest requests go once it has answered them. False where too few would be left.

        holds: says which of them could do all the work; settings.min_replicas of those that are up stay.
        """
        self._check_alive()
        up = [replica for replica in self.staying if replica.up]
        for replica in sorted(up, key=lambda replica: (replica.load, -self.replicas.index(replica))):
            if sum(holds(other) for other in up if other is not replica) >= self._least:
                replica.leaving = True
                self._notify(replica)
                self._shrunk += 1
                task = asyncio.create_task(self._leave(replica), name=f"{replica.name} leaves")
                self._leaving.add(task)
                task.add_done_callback(self._leaving.discard)
                return True
        return False

    async def route(
        self,
        method: Endpoint[A, *Ts, R],
        *args: *Ts,
        timeout_s: float | None = None,
        abandon: Callable[[ProcessGroup[A]], None] | None = None,
        session: Session[A] | None = None,
    ) -> R:
        """Call an endpoint, given as `Class.method`, on the replica with the fewest requests.

        timeout_s: of everything, retries included; None uses settings.request_timeout_s. abandon: called with
        the group that still works on the request when the caller was cancelled or ran out of time.
        """
        deadline_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        started_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout(deadline_s) as deadline:
                answer = await self._attempt(method, args, abandon, session or self._session.get() or Session(self))
        except TimeoutError as error:
            if not deadline.expired():
                raise  # the endpoint's own
            raise InfraError(f"{self.name}: no answer to {method_name(method)} within {deadline_s} s") from error
        self._latencies_s.append(asyncio.get_running_loop().time() - started_s)
        self._requests += 1
        return answer

    call_one = route  # the name that a process group has for it

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Session[A]]:
        """Calls that stay with one replica (its caches), and move only when it dies: those of the session, and in the
        block those of the service.
        """
        outer, session = self._session.get(), Session(self)
        self._session.set(session)
        try:
            yield session
        finally:
            self._session.set(outer)

    def __getattr__(self, name: str) -> NamedEndpoint:
        """An endpoint by its name: `await service.method.route(...)`."""
        return named_endpoint(self.__dict__.get("_actor_class"), name, self.route, self.fanout)

    async def fanout(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None = None) -> list[R]:
        """Call an endpoint on every replica that is up: the answers of their rank 0; see call_all."""
        return [answers[0] for answers in await self.call_all(method, *args, timeout_s=timeout_s)]

    async def call_all(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None = None) -> list[list[R]]:
        """Call an endpoint on every process of every replica that is up: answers by replica, then rank.

        A replica that dies meanwhile is left out. Raises what an endpoint raised.
        """
        self._check_alive()
        groups = [replica.group for replica in self.replicas if replica.up]
        deadline_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        calls = (group.call(method, *args, timeout_s=deadline_s) for group in groups)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        alive: list[list[R]] = []
        for answer in answers:
            if isinstance(answer, ProcessDied):
                continue
            if isinstance(answer, BaseException):
                raise answer
            alive.append(answer)
        return alive

    def get_metrics(self) -> dict[str, float]:
        """Gauges now, and sums since the start (`_total`)."""
        latencies_s = sorted(self._latencies_s)
        return {
            "replicas_up": float(sum(replica.up for replica in self.replicas)),
            "replicas_wanted": float(len(self.staying)),
            "grown_total": float(self._grown),
            "shrunk_total": float(self._shrunk),
            "in_flight": float(sum(replica.load for replica in self.replicas)),
            "requests_total": float(self._requests),
            "retries_total": float(self._retries),
            "respawns_total": float(sum(replica.respawns for replica in self.replicas)),
            "missed_probes_total": float(sum(replica.missed_probes for replica in self.replicas)),
            "route_p50_s": statistics.median(latencies_s) if latencies_s else 0.0,
            "route_p95_s": latencies_s[int(0.95 * (len(latencies_s) - 1))] if latencies_s else 0.0,
        }

    def pids(self) -> list[int]:
        """The process ids of the replicas that are up."""
        return [pid for replica in self.replicas if replica.up for pid in replica.group.pids]

    async def close(self) -> None:
        """Stop every replica; calls that still wait fail. Safe to call twice."""
        if self._failure is None:
            self._fail(InfraError(f"service {self.name} is closed"))
        tasks = [*self._leaving, *self._supervisors.values()]
        for task in tasks:
            if not task.cancelling():  # a second time would interrupt the end of its processes
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def shutdown(self) -> None:
        await self.close()

    async def _attempt(
        self,
        method: Endpoint[A, *Ts, R],
        args: tuple[*Ts],
        abandon: Callable[[ProcessGroup[A]], None] | None,
        session: Session[A],
    ) -> R:
        lost = ""
        for _ in range(self._settings.max_attempts):
            replica = await self._router.take(session.replica)
            group = replica.group
            try:
                answer = await group.call_one(method, *args, timeout_s=None)
                session.stay_with(replica)
                return answer
            except ProcessDied as error:
                lost = str(error)
                self._retries += 1
                # Its supervisor may not have run yet; the router must not pick it until then.
                if replica.group is group:
                    replica.up = False
                    self._notify(replica)
            except asyncio.CancelledError:
                if abandon is not None:
                    abandon(group)
                raise
            finally:
                self._router.give_back(replica)
                if replica.leaving:
                    self._wake()
        raise InfraError(
            f"{self.name}: {method_name(method)} lost {self._settings.max_attempts} replicas in a row; "
            f"does it kill them? {lost}"
        )

    def _check_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def next_change(self) -> None:
        """Returns once a replica may have come up or gone down. Raises the reason when the service has failed."""
        self._check_alive()
        await self._changed.wait()
        self._check_alive()

    def _notify(self, replica: Replica[A]) -> None:
        """The replica came up, went down, or was told to leave or to stay."""
        self._router.changed(replica)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _fail(self, error: BaseException) -> None:
        self._failure = error
        self._router.fail(error)
        self._wake()

    def _supervise(self, replica: Replica[A]) -> None:
        self._supervisors[replica] = task = asyncio.create_task(replica.supervise(), name=replica.name)
        task.add_done_callback(partial(self._supervisor_ended, replica))

    def _supervisor_ended(self, replica: Replica[A], task: asyncio.Task[None]) -> None:
        del self._supervisors[replica]
        error = None if task.cancelled() else task.exception()
        if error is not None and self._failure is None:
            if self._starting or len(self.staying) < self._least:
                self._fail(error)
            else:
                self.lost += 1
                log.warning("%s goes on with %d replicas: %s", self.name, len(self.staying), error)
        self._wake()

    async def _leave(self, replica: Replica[A]) -> None:
        while replica.leaving and replica.load:
            await self.next_change()
        supervisor = self._supervisors.get(replica)
        if replica.leaving and supervisor is not None and not supervisor.cancelling():
            supervisor.cancel()


class Session(Generic[A]):
    """One caller's calls to the same replica."""

    def __init__(self, service: Service[A]) -> None:
        self._service = service
        self.replica: Replica[A] | None = None
        self.moves = 0  # to another replica, after a death

    async def route(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None = None) -> R:
        return await self._service.route(method, *args, timeout_s=timeout_s, session=self)

    def stay_with(self, replica: Replica[A]) -> None:
        self.moves += self.replica not in (None, replica)
        self.replica = replica
