"""Monarch in this process: settings, spawning with an environment, and an end that leaves nothing behind."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import gc
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import cache, partial
from pathlib import Path
from typing import Self, TypeVar, cast

from agentgym.actors.caller import Caller
from agentgym.actors.hosts import Host, Hosts, HostsConfig
from agentgym.actors.launchers import CHILD_MODULE, Launcher, LocalLauncher
from agentgym.actors.sockets import check_socket_folder
from agentgym.errors import InfraError, UserError
from agentgym.observed import OBSERVED
from agentgym.plugin_errors import blamed

log = logging.getLogger(__name__)

T = TypeVar("T")

ASKED_EVERY_S = 60
MONARCH_SETTINGS: Mapping[str, str] = {
    # Every question to a group leaves 5 KiB in this process, and a death is reported at once by its pidfd.
    "HYPERACTOR_MESH_SUPERVISION_POLL_FREQUENCY": f"{ASKED_EVERY_S}s",
    "HYPERACTOR_MESH_BOOTSTRAP_ENABLE_PDEATHSIG": "true",  # children die with their parent
    "HYPERACTOR_CODEC_MAX_FRAME_LENGTH": str(10**12),  # weights may travel as messages (TorchStore)
}
IDLE_LIMITS = (
    "get_actor_state_max_idle",  # a process that says nothing for so long counts as dead
    "get_proc_state_max_idle",
    "supervision_watchdog_timeout",
    "message_delivery_timeout",  # a message that is not taken for so long is lost
    "mesh_orphan_timeout",  # an actor that was not asked for so long ends
    "actor_spawn_max_idle",
    "mesh_proc_spawn_max_idle",
    "host_spawn_ready_timeout",
)
"""Monarch's settings (`monarch.config`) of how long a silent process, stopped or starved, is waited for."""
for _name, _value in MONARCH_SETTINGS.items():
    os.environ.setdefault(_name, _value)  # Monarch reads them once, at its first import

import cloudpickle  # noqa: E402  # Monarch's own
import monarch.actor  # noqa: E402
import monarch.config  # noqa: E402
from monarch._rust_bindings.monarch_hyperactor.host_mesh import BootstrapCommand  # noqa: E402
from monarch._src.actor.endpoint import EndpointProperty as EndpointProperty  # noqa: E402
from monarch.actor import Actor as Actor  # noqa: E402
from monarch.actor import ActorError as ActorError  # noqa: E402
from monarch.actor import MeshFailure, Point, default_bootstrap_cmd, shutdown_context  # noqa: E402
from monarch.actor import ProcMesh as ProcMesh  # noqa: E402
from monarch.actor import concurrent_endpoint as concurrent_endpoint  # noqa: E402

SHUTDOWN_TIMEOUT_S = 10.0
port_endpoint: Callable[[T], T] = monarch.actor.endpoint(explicit_response_port=True)
"""A method that is given the caller's port; its calls run one after another, in the order in which they were made."""


def log_fault(failure: MeshFailure) -> None:
    """Replaces Monarch's own handler, which ends the program; ProcessGroup and Replica handle deaths.

    It may run on any thread and must not raise.
    """
    with contextlib.suppress(Exception):
        log.debug("monarch reports a fault of %s: %s", failure.mesh_name, failure.report())


@contextlib.contextmanager
def _stderr_to_log() -> Iterator[None]:
    """Monarch's native code prints to file descriptor 2 when it starts, which would break a terminal view."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            for line in file.read().decode(errors="replace").splitlines():
                log.debug("monarch: %s", line)


def _shutdown_at_exit() -> None:
    """Runs before Monarch's own exit handler, which waits one second and then prints a traceback."""
    try:
        shutdown_context(host_timeout=1.0).get(timeout=SHUTDOWN_TIMEOUT_S)
    except Exception as error:
        log.debug("monarch did not shut down cleanly: %s", error)


def _use_transport(transport: str) -> None:
    """Must precede the client; empty is Monarch's own choice, a socket that only this machine reaches."""
    if transport:
        try:
            monarch.actor.enable_transport(transport)
        except RuntimeError as error:
            raise UserError("this process has already used hosts at another address; start a new one") from error


@cache
def _start_client() -> None:
    """The one Monarch client that a process may have; the first call starts it."""
    monarch.actor.unhandled_fault_hook = log_fault
    monarch.actor.config.prefix_python_logs_with_actor = False  # else it changes every log record
    with _stderr_to_log():
        monarch.actor.this_host()
    atexit.register(_shutdown_at_exit)  # after Monarch registered its own: the last one runs first


class Runtime(Caller):
    """The processes of one run. Use it as `async with Runtime() as runtime`; leaving it stops them all.

    log_dir: where each process appends what it prints; None leaves it on this process's terminal.
    launcher: gives the hosts on which they are spawned. hosts_config: who is on which of them; by default each group is
    where the fewest are. patience_s: for how long one that is silent counts as alive, as long as the kernel reports
    no death: the longest deadline of its calls. See `open_runtime` for hosts elsewhere.
    Several may follow one another in one process; Monarch itself ends with the interpreter.
    """

    def __init__(
        self,
        *,
        log_dir: Path | None = None,
        launcher: Launcher | None = None,
        hosts_config: HostsConfig | None = None,
        patience_s: float = 600.0,
    ) -> None:
        super().__init__()
        self._log_dir = log_dir
        self._launcher = launcher or LocalLauncher()
        self._hosts_config = hosts_config or HostsConfig()
        self._patience_s = patience_s
        self._meshes: dict[int, ProcMesh] = {}  # by id()
        self.services: list[Callable[[], Awaitable[None]]] = []
        """Close those that a program started, and may have left open."""
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        check_socket_folder()
        _use_transport(self._launcher.transport())
        _start_client()
        patience_s = max(self._patience_s, 3 * ASKED_EVERY_S)  # nobody is silent because he was not asked
        monarch.config.configure(**dict.fromkeys(IDLE_LIMITS, f"{round(1000 * patience_s)}ms"))
        if self._log_dir is not None:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        await super().__aenter__()
        self._stack.push_async_exit(super().__aexit__)
        with blamed("launchers", self._launcher):
            launched = await self._stack.enter_async_context(self._launcher.hosts(self._log_dir))
        self.hosts = Hosts(launched, self._hosts_config)
        if not _open_runtimes:
            gc.freeze()  # else the collector stops the event loop for half a second: it walks through all of torch
        _open_runtimes.append(self)
        OBSERVED.readers += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        _open_runtimes.remove(self)
        OBSERVED.readers -= 1
        if not _open_runtimes:
            gc.unfreeze()
        async with self._stack:
            await asyncio.gather(*(close() for close in self.services))  # else they would start their replicas again
            await asyncio.gather(*(self.stop(mesh) for mesh in list(self._meshes.values())))

    def log_path(self, name: str, rank: int) -> Path | None:
        return None if self._log_dir is None else self._log_dir / f"{name}.{rank}.log"

    def spawn(
        self,
        name: str,
        *,
        hosts: str | Host = "",
        title: str | None = None,
        procs: int = 1,
        first_rank: int = 0,
        environment: Callable[[int], Mapping[str, str]] = lambda rank: {},
        imports: Sequence[str] = (),
        logged: bool = True,
    ) -> ProcMesh:
        """Start processes on one host; returns at once. Raises InfraError when all that they may be on are lost.

        hosts: the host, or of what they are a part (trainer, generator, …), which chooses it; empty is any.
        title: appears in the processes' command line; None uses the name. first_rank: of those on this host.
        environment: by rank; set before the interpreter starts, which CUDA_VISIBLE_DEVICES and OMP_NUM_THREADS need.
        imports: modules that every process imports before its first actor (patches). logged: to a file of their own.
        """
        if isinstance(hosts, str):
            found = self.hosts.choose(hosts, procs)
            if not found:
                raise InfraError(f"every host that {name} may be on is lost")
            hosts = found[0]

        def command(point: Point) -> BootstrapCommand:
            rank = first_rank + point["procs"]
            path = self.log_path(name, rank) if logged else None
            started = default_bootstrap_cmd().with_env(dict(environment(rank)))
            # Elsewhere a path means the same file only from the same folder.
            where = ("--folder", str(Path.cwd()), *(("--log", str(path)) if path else ()))
            parent = ("--parent", str(os.getpid())) if isinstance(self._launcher, LocalLauncher) else ()
            started.args = ["-m", CHILD_MODULE, "--name", title or name, *where, *parent]
            return started

        mesh = hosts.mesh.spawn_procs(
            per_host={"procs": procs},
            name=name,
            bootstrap=partial(import_modules, imports) if imports else None,
            bootstrap_command=command,
        )
        hosts.processes += procs
        self._meshes[id(mesh)] = mesh
        return mesh

    async def stop(self, mesh: ProcMesh, *, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Stop the processes of a mesh, dead ones included. A failure is logged, not raised."""
        if self._meshes.pop(id(mesh), None) is None:
            return
        try:
            await asyncio.wait_for(mesh.stop().as_asyncio(), timeout_s)
        except Exception as error:  # a dead mesh raises errors of many kinds, and it is dead
            log.debug("stop of a process mesh: %s: %s", type(error).__name__, error)


def by_value(thing: object) -> bytes:
    """A pickle for other processes, also of a function that is defined in the program itself or in another function."""
    return cast(bytes, cloudpickle.dumps(thing))


def import_modules(names: Sequence[str]) -> None:
    """Runs in a new process."""
    for name in names:
        importlib.import_module(name)


_open_runtimes: list[Runtime] = []


def current_runtime() -> Runtime:
    """The runtime that was opened last."""
    if not _open_runtimes:
        raise UserError("no Runtime is open; write `async with Runtime() as runtime:` around the services")
    return _open_runtimes[-1]
