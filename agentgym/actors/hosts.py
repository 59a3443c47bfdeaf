"""The hosts of a run: which parts of it are on which, and which hosts are lost at the moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from agentgym.actors.launchers import LaunchedHost
from agentgym.actors.process_id import ProcessId
from agentgym.errors import InfraError, UserError, nearest

if TYPE_CHECKING:
    from monarch.actor import HostMesh, ProcMesh


@dataclass(frozen=True, slots=True, kw_only=True)
class HostsConfig:
    """Which parts of a run are placed on which of the launcher's hosts."""

    trainer: tuple[str, ...] = ()
    """Hosts of the trainer and the reference model, by name: their processes are divided among these in equal parts,
    and with fewer processes than hosts the rest stand by. Empty is any host."""
    generator: tuple[str, ...] = ()
    """Hosts that the replicas are divided among, by name; empty is any host."""
    worker: tuple[str, ...] = ()
    """Hosts that the rollout workers (`rollout.workers`) are divided among, by name; empty is any host."""
    start_timeout_s: float = 120.0
    """Seconds within which every host must answer when the run starts."""
    lost_after_s: float = 30.0
    """Seconds of silence after which a host counts as lost; what ran there is started elsewhere, or once it is back."""
    max_clock_skew_s: float = 30.0
    """Seconds that a host's clock may differ from the controller's; with more it is refused."""

    def __post_init__(self) -> None:
        if min(self.start_timeout_s, self.lost_after_s, self.max_clock_skew_s) <= 0:
            raise ValueError("hosts.start_timeout_s, lost_after_s and max_clock_skew_s must be above 0")


class HostKeeper(Protocol):
    """Acts on a host that is elsewhere."""

    async def ended(self, process: ProcessId) -> str:
        """Returns once the process has ended, and says how. Raises InfraError when that can't be known."""

    async def kill(self, process: ProcessId) -> None: ...

    async def serve(self, folder: str, token: str) -> int:
        """Make the folder, have its files be fetched by who knows the token, and return the port."""


@dataclass(slots=True, kw_only=True, eq=False)
class Host:
    """address: where the other hosts reach it; empty for one of this machine. gpus: those it has.

    keeper: None for a host of this machine, whose processes the kernel reports. lost: why, while it is.
    """

    name: str
    mesh: HostMesh
    again: Callable[[], Awaitable[HostMesh]] | None = None
    address: str = ""
    gpus: tuple[str, ...] = ()
    keeper: HostKeeper | None = None
    lost: str = ""
    processes: int = 0  # that are meant to run there
    taken: set[str] = field(default_factory=set)  # GPUs
    leftovers: list[ProcessId] = field(default_factory=list)  # to be killed when it is back
    losing: set[Callable[[str], None]] = field(default_factory=set)
    """Called with the reason when it is lost."""

    def take_gpus(self, number: int) -> tuple[str, ...]:
        """The first that nobody has. Raises UserError when there are too few."""
        free = [gpu for gpu in self.gpus if gpu not in self.taken][:number]
        if len(free) < number:
            raise UserError(
                f"host {self.name} has {len(self.gpus)} GPUs, of which {len(free)} are free, and {number} are asked "
                "for; name more hosts in `hosts`, or start fewer processes"
            )
        self.taken.update(free)
        return tuple(free)


@dataclass(slots=True, eq=False)
class HostPart:
    """The processes of a group on one host, and their actor there."""

    host: Host
    mesh: ProcMesh
    actor: Any
    procs: int
    gpus: set[str]

    def leave(self, losing: Callable[[str], None]) -> None:
        self.host.processes -= self.procs
        self.host.taken -= self.gpus
        self.host.losing.discard(losing)


Wanted: TypeAlias = "int | str | Sequence[str] | None"
"""What `ActorOptions.hosts` may be."""


class Hosts:
    """All hosts of a run."""

    def __init__(self, launched: Sequence[HostMesh | LaunchedHost], config: HostsConfig) -> None:
        """Raises UserError for a name in the config that no host has."""
        named = [
            one if isinstance(one, LaunchedHost) else LaunchedHost(name=f"host{index}", mesh=one)
            for index, one in enumerate(launched)
        ]
        self.all = [Host(name=one.name, mesh=one.mesh, again=one.again) for one in named]
        self.config = config
        self._back = asyncio.Event()
        known = [host.name for host in self.all]
        for role, names in (("trainer", config.trainer), ("generator", config.generator), ("worker", config.worker)):
            for name in names:
                if name not in known:
                    raise UserError(f"hosts.{role} has {name!r}; the launcher has no such host.{nearest(name, known)}")

    @property
    def elsewhere(self) -> bool:
        """Whether any is on another machine."""
        return any(host.keeper is not None for host in self.all)

    def of(self, wanted: Wanted) -> list[Host]:
        """The hosts that processes may use; see `ActorOptions.hosts`. Raises UserError for those that do not exist."""
        config = self.config
        roles = {"trainer": config.trainer, "reference": config.trainer, "generator": config.generator}
        roles["worker"] = config.worker
        if isinstance(wanted, int) and wanted > len(self.all):
            raise UserError(f"hosts is {wanted}, and the launcher has {len(self.all)}: {self._names()}; give fewer")
        if not wanted or isinstance(wanted, int):
            return list(self.all)
        names = roles.get(wanted, (wanted,)) if isinstance(wanted, str) else wanted
        for name in names:
            if name not in self._names():
                known = [*self._names(), *roles]
                raise UserError(f"hosts is {wanted!r}; the launcher has no such host.{nearest(str(name), known)}")
        return [host for name in names for host in self.all if host.name == name] or list(self.all)

    def _names(self) -> list[str]:
        return [host.name for host in self.all]

    async def assign(self, wanted: Wanted, procs: int, *, timeout_s: float) -> list[Host]:
        """The hosts for a group of processes, an equal number on each; waits while all that it may be on are lost.

        Raises InfraError when none came back in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not (found := self.choose(wanted, procs)):
                    self._back.clear()
                    await self._back.wait()
        except TimeoutError:
            lost = "; ".join(f"{host.name}: {host.lost}" for host in self.of(wanted) if host.lost)
            raise InfraError(
                f"no host for the {wanted or 'process'} came back within {timeout_s:g} s ({lost})"
            ) from None
        return found

    def choose(self, wanted: Wanted, procs: int) -> list[Host]:
        """Chooses hosts as `assign` does, without waiting; empty if all are lost, or too many for a number of hosts."""
        alive = [host for host in self.of(wanted) if not host.lost]
        named = bool(wanted) and not isinstance(wanted, int | str)
        if named or (wanted in ("trainer", "reference") and self.config.trainer):
            return alive[: max((n for n in range(1, len(alive) + 1) if procs % n == 0), default=0)]
        number = wanted if isinstance(wanted, int) else 1
        return sorted(alive, key=lambda host: host.processes)[:number] if len(alive) >= number else []

    def lose(self, host: Host, reason: str) -> None:
        host.lost = reason
        for losing in list(host.losing):
            losing(f"host {host.name} is lost: {reason}")

    def found(self, host: Host) -> None:
        host.lost = ""
        self._back.set()
