"""The processes of one actor: started, called with a deadline, and reported dead as soon as they are."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pickle
import re
import select
import signal
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar, TypeVarTuple

import psutil

from agentgym.actors.by_name import NamedEndpoint, named_endpoint
from agentgym.actors.calls import ActorDied, Calls
from agentgym.actors.calls import NoAnswer as NoAnswer
from agentgym.actors.calls import ProcessDied as ProcessDied
from agentgym.actors.descendants import descendants, titled
from agentgym.actors.endpoint import Endpoint, LifecycleActor, endpoint_name
from agentgym.actors.exits import by_signal, how_it_ended, size_of, with_tail
from agentgym.actors.hosts import Host, HostKeeper, HostPart
from agentgym.actors.network import LOOPBACK
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_id import ProcessId
from agentgym.actors.replies import Answer, NotSent
from agentgym.actors.runtime import ActorError, Runtime
from agentgym.errors import InfraError

log = logging.getLogger(__name__)

KILL_WAIT_S = 5.0
LOST_STOP_S = 1.0  # for processes of a lost host, which will not answer
_ENDED = re.compile(r"Terminal\(\w+ \{ (signal|exit_code): (\d+)")  # of a process, in Monarch's words
_NOT_MADE = re.compile(r"self\.instance = Class\(.*?\)[ ^]*(.*)")  # the line of Monarch that calls `__init__`
A = TypeVar("A", bound=LifecycleActor)
R = TypeVar("R")
T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_titles = itertools.count()


class ProcessGroup(Generic[A]):
    """One actor on `options.procs` processes of one or several of the launcher's hosts.

    The kernel reports a death on this host at once (through a pidfd), so no call waits for a dead process. Elsewhere
    its host's keeper does the same there, Monarch reports deaths too, and a host that is lost takes its processes
    with it. An error that the actor's own code raises goes to the caller and never counts as a death.
    """

    def __init__(
        self,
        runtime: Runtime,
        name: str,
        actor_class: type[A],
        args: tuple[object, ...],
        options: ActorOptions,
        on: Host | None = None,
        named: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """args, named: of the actor's class. on: the host; None: options.hosts say it."""
        self.name = name
        self.processes: list[ProcessId] = []  # by rank
        self._actor_class = actor_class
        self._args, self._named = args, named
        self._options = options
        self._on = on
        self._runtime = runtime
        self._parts: list[HostPart] = []
        self._ranks: list[Any] = []  # the actor of each
        self._far: set[asyncio.Task[None]] = set()  # one for each process elsewhere, until it has ended
        self._pidfds: dict[int, int] = {}  # rank -> file descriptor
        self._log_begins: dict[int, int] = {}  # rank -> where its log had ended, which an earlier group may have begun
        self._calls = Calls(name)
        self.dead = self._calls.dead
        """Done with the reason once any of the processes is dead or given up."""
        self._exited = asyncio.Event()  # every process
        self._stopping = False
        self._title = f"{name}#{next(_titles)}"

    async def start(self, *, timeout_s: float) -> None:
        """Start the processes, then wait for the actor's own `start` on each of them.

        Raises what `start` raised, or ProcessDied, NoAnswer after timeout_s, or InfraError where all hosts are lost.
        """
        options = self._options
        if self._on is not None:
            self._spawn([self._on])
        else:
            self._spawn(await self._runtime.hosts.assign(options.hosts, options.procs, timeout_s=timeout_s))
        self._watch(await self._probe(timeout_s))
        for part in self._parts:
            part.actor.agentgym_lasts.call().as_asyncio().add_done_callback(self._on_fault)
        try:
            if options.torchrun:
                await self._meet(timeout_s)
            await self.call(LifecycleActor.start, timeout_s=timeout_s)
        except asyncio.CancelledError:
            self.give_up("stopped while it started")  # it is killed: it may not answer before it has
            raise

    def _spawn(self, hosts: Sequence[Host]) -> None:
        options, each = self._options, self._options.procs // len(hosts)
        self._log_begins = {n: size_of(self._runtime.log_path(self.name, n)) for n in range(options.procs)}
        for index, host in enumerate(hosts):
            first = index * each
            gpus = self._gpus_of(host, each)

            def environment(rank: int, first: int = first, gpus: Sequence[tuple[str, ...]] = gpus) -> dict[str, str]:
                return options.environment(rank, rank - first, gpus[rank - first])

            mesh = self._runtime.spawn(
                self.name,
                hosts=host,
                title=self._title,
                procs=each,
                first_rank=first,
                environment=environment,
                imports=options.imports,
                logged=options.logged,
            )
            actor = mesh.spawn(self.name, self._actor_class, *self._args, **self._named)
            part = HostPart(host, mesh, actor, each, set().union(*gpus))
            self._parts.append(part)
            self._ranks += [part.actor] if each == 1 else [part.actor.slice(procs=rank) for rank in range(each)]
            if self._on is None:  # what is put on a host by name asks whether that is back
                host.losing.add(self.give_up)
                if host.lost:
                    self.give_up(f"host {host.name} is lost: {host.lost}")

    def _gpus_of(self, host: Host, procs: int) -> list[tuple[str, ...]]:
        """The GPUs of each process there; empty where the options or this process's own view decide."""
        options = self._options
        if not options.with_gpus or options.gpus or host.keeper is None or not host.gpus:
            return [()] * procs
        taken = host.take_gpus(procs * options.gpus_per_process)
        each = options.gpus_per_process
        own = [taken[rank * each : (rank + 1) * each] for rank in range(procs)]
        return [taken] * procs if options.share_gpus else own

    async def _meet(self, timeout_s: float) -> None:
        """Rank 0 says where the others find it."""
        first = self._parts[0].host
        address = LOOPBACK if len(self._parts) == 1 else first.address or LOOPBACK
        asked = [self._runtime.ask(self._ranks[0], "agentgym_port", pickle.dumps((address,)))]
        (port,) = await self._calls.answers("agentgym_port", asked, Answer.value, timeout_s)
        await self.call(LifecycleActor.agentgym_meet, address, port, timeout_s=timeout_s)

    @property
    def num_answers(self) -> int:
        """Calls that all processes have answered."""
        return self._calls.num_answers

    @property
    def hosts(self) -> list[Host]:
        """Where its processes are; empty before `start`."""
        return [part.host for part in self._parts]

    @property
    def actor(self) -> Any:
        """Monarch's reference to a group of one process, for other processes to call."""
        return self._ranks[0]

    @property
    def pids(self) -> list[int]:
        """The ids of its processes in this process's namespace: elsewhere the same number may be another process."""
        return [process.pid for process in self.processes if process.is_here]

    def give_up(self, reason: str) -> None:
        """Count the group as dead: calls under way fail with ProcessDied, and no new one is taken."""
        self._calls.end(reason)

    async def call(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None) -> list[R]:
        """Call an endpoint, given as `Class.method`, on every process; answers in rank order.

        Raises what the endpoint raised, ProcessDied, NoAnswer after timeout_s, or UserError for a method
        that is not an endpoint of the actor.
        """
        return await self.call_each(method, [args] * len(self._ranks), timeout_s=timeout_s)

    async def call_each(
        self, method: Endpoint[A, *Ts, R], arguments: Sequence[tuple[*Ts]], *, timeout_s: float | None
    ) -> list[R]:
        """The same with arguments of each process's own, in rank order."""
        name = endpoint_name(self._actor_class, method)
        if self.dead.done():
            raise ProcessDied(f"{self.name} is dead: {self.dead.result()}")
        bodies: dict[int, bytes] = {}  # pickled once where several get the same
        for args in arguments:
            if id(args) not in bodies:
                bodies[id(args)] = pickle.dumps(args, pickle.HIGHEST_PROTOCOL)
        asked = [
            self._runtime.ask(actor, name, bodies[id(args)]) for actor, args in zip(self._ranks, arguments, strict=True)
        ]
        try:
            return await self._calls.answers(name, asked, Answer.value, timeout_s)
        except (NotSent, ActorDied) as error:
            raise self._died(error) from error

    async def call_one(self, method: Endpoint[A, *Ts, R], *args: *Ts, timeout_s: float | None) -> R:
        """Call an endpoint of a group with one process. Raises as `call` does."""
        (answer,) = await self.call(method, *args, timeout_s=timeout_s)
        return answer

    def __getattr__(self, name: str) -> NamedEndpoint:
        """An endpoint by its name, called without a deadline: `await group.method.call_one(...)`."""
        no_deadline: dict[str, Any] = {"timeout_s": None}
        one, every = partial(self.call_one, **no_deadline), partial(self.call, **no_deadline)
        return named_endpoint(self.__dict__.get("_actor_class"), name, one, every)

    def broadcast(self, method: Endpoint[A, *Ts, None], *args: *Ts) -> None:
        """Call an endpoint that never raises, without waiting for an answer."""
        name = endpoint_name(self._actor_class, method)
        if not self.dead.done():
            self._runtime.flush()  # calls that were made before it must come before it
            for part in self._parts:
                with contextlib.suppress(RuntimeError):
                    getattr(part.actor, name).broadcast(*args)

    async def stop(self, *, timeout_s: float = 10.0) -> None:
        """End every process: through Monarch, then by SIGKILL if it hangs or takes too long."""
        self._stopping = True
        if self.dead.done():
            self._kill()  # the remaining processes of a dead group would not answer
        else:
            with contextlib.suppress(Exception):
                await self.call(LifecycleActor.finish, timeout_s=timeout_s)
        self.give_up("stopped")
        stops = ((part, LOST_STOP_S if part.host.lost else timeout_s) for part in self._parts)
        await asyncio.gather(*(self._runtime.stop(part.mesh, timeout_s=limit_s) for part, limit_s in stops))
        if not self.processes:  # stopped before its first answer
            self._watch(titled(self._title))
        if self._pidfds and not await self._all_exited(KILL_WAIT_S):
            log.warning("%s did not stop; killing processes %s", self.name, self.pids)
            self._kill()
            await self._all_exited(KILL_WAIT_S)
        for rank in [*self._pidfds]:
            self._unwatch(rank)
        await self._end_elsewhere()
        for part in self._parts:
            part.leave(self.give_up)
        self._runtime.forget(self._ranks)
        self._parts.clear()

    async def _end_elsewhere(self) -> None:
        """Kills what is left of the processes on other hosts; on a lost host once it is back."""
        if self._far:
            await asyncio.wait(self._far, timeout=KILL_WAIT_S if not any(p.host.lost for p in self._parts) else 0)
        left = [task for task in self._far if not task.done()]
        for task in left:
            task.cancel()
        for rank, process in enumerate(self.processes if left else ()):
            host = self._host_of(rank)
            if host.lost:
                host.leftovers.append(process)
            elif host.keeper is not None:
                with contextlib.suppress(InfraError):
                    await host.keeper.kill(process)

    def _host_of(self, rank: int) -> Host:
        return self._parts[rank // self._parts[0].procs].host

    async def _probe(self, timeout_s: float) -> list[ProcessId]:
        """Asks in Monarch's own way, which says when a process does not start."""
        try:
            asked = [part.actor.probe.call().as_asyncio() for part in self._parts]
            for one in asked:
                one.add_done_callback(lambda late: late.cancelled() or late.exception())  # else asyncio logs a late one
            parts = await self._calls.answers("probe", asked, list, timeout_s)
            return [info.process for infos in parts for _, info in infos]
        except InfraError:
            raise
        except ActorError as error:
            raise error.exception from error
        except Exception as error:  # SupervisionError and its relatives; ValueError when a process did not start
            raise self._died(error) from error

    def _on_fault(self, lasting: asyncio.Future[object]) -> None:
        """Monarch reports a death, which the kernel reports only for processes of this host."""
        if not lasting.cancelled() and (error := lasting.exception()) and not self._stopping:
            self._died(error)

    def _died(self, error: BaseException) -> ProcessDied:
        self.see_exits()  # on a busy event loop Monarch may report first; the kernel's report says more
        reason = " ".join(str(error).split())
        if not self.processes and (ended := _ENDED.search(reason)):
            how = by_signal(int(ended[2])) if ended[1] == "signal" else f"ended with exit code {ended[2]}"
            reason = self._with_tail(f"its process was {how} while it started", 0)
        elif not self.processes and (raised := _NOT_MADE.search(reason)):
            reason = f"{self._actor_class.__name__}.__init__ failed: {raised[1]}"
        elif isinstance(error, ActorDied):
            reason = self._with_tail(reason, 0)
        self.give_up(reason)
        return ProcessDied(f"{self.name} is dead: {self.dead.result()}")

    def see_exits(self) -> None:
        """Handle the exits that the event loop has not reported yet."""
        for rank, descriptor in list(self._pidfds.items()):
            poller = select.poll()
            poller.register(descriptor, select.POLLIN)
            if poller.poll(0):
                self._on_exit(rank)

    def _kill(self) -> None:
        """Kills the processes with everything they started: not every child notices that its parent is gone."""
        family = [child for rank in self._pidfds for child in descendants(self.processes[rank].pid)]
        for descriptor in self._pidfds.values():
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        for child in family:
            with contextlib.suppress(psutil.Error):
                child.kill()

    def _watch(self, processes: list[ProcessId]) -> None:
        self.processes = processes
        for rank, process in enumerate(processes):
            if not process.is_here:
                if (keeper := self._host_of(rank).keeper) is not None:
                    task = asyncio.create_task(self._watch_elsewhere(rank, keeper), name=f"{self._title} {rank}")
                    self._far.add(task)
                    task.add_done_callback(self._far.discard)
                continue
            try:
                self._pidfds[rank] = descriptor = process.open()
            except ProcessLookupError:
                self._on_exit(rank)
            else:
                asyncio.get_running_loop().add_reader(descriptor, self._on_exit, rank)

    async def _watch_elsewhere(self, rank: int, keeper: HostKeeper) -> None:
        with contextlib.suppress(InfraError):  # the host is lost, or its agent: Monarch's reports are left
            how = await keeper.ended(self.processes[rank])
            if not self._stopping:
                where = f"of {self.name} on host {self._host_of(rank).name}"
                reason = f"process {self.processes[rank].pid} (rank {rank}) {where} died: {how}"
                self.give_up(self._with_tail(reason, rank))

    def _unwatch(self, rank: int) -> None:
        descriptor = self._pidfds.pop(rank)
        asyncio.get_running_loop().remove_reader(descriptor)
        os.close(descriptor)

    def _on_exit(self, rank: int) -> None:
        log_path = self._runtime.log_path(self.name, rank)
        beat = None if log_path is None else log_path.with_suffix(".beat")
        how = how_it_ended(self._pidfds[rank], beat) if rank in self._pidfds else "it no longer exists"
        if rank in self._pidfds:
            self._unwatch(rank)
        if not self._pidfds:
            self._exited.set()
        if not self._stopping:
            reason = f"process {self.processes[rank].pid} (rank {rank}) of {self.name} died: {how}"
            self.give_up(self._with_tail(reason, rank))

    def _with_tail(self, reason: str, rank: int) -> str:
        return with_tail(reason, self._runtime.log_path(self.name, rank), self._log_begins.get(rank, 0))

    async def _all_exited(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._exited.wait(), timeout_s)
        return self._exited.is_set()
