"""A runtime on hosts elsewhere: each gets an agent of ours, is checked, listened to, and taken back when it returns."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from agentgym.actors.host_agent import PACKAGES, HostAgent, HostInfo
from agentgym.actors.hosts import Host, HostsConfig
from agentgym.actors.launchers import Launcher
from agentgym.actors.options import ActorOptions
from agentgym.actors.process_group import ProcessGroup
from agentgym.actors.process_id import ProcessId
from agentgym.actors.runtime import Runtime
from agentgym.errors import InfraError, UserError

log = logging.getLogger(__name__)

LISTEN_EVERY_S = 2.0
CALL_S = 30.0
PROBE_S = 5.0
AGAIN_S = 60.0  # for a host that is back to start a process
_numbers = itertools.count()


@asynccontextmanager
async def open_runtime(
    *,
    launcher: Launcher,
    hosts_config: HostsConfig,
    log_dir: Path,
    patience_s: float,
    shared: Sequence[Path] = (),
    note: Callable[[str], None] = lambda text: None,
) -> AsyncIterator[Runtime]:
    """A runtime whose hosts may be elsewhere.

    shared: folders that all hosts must see. note: gets what the user should know. Raises UserError, with the host's
    name, for one that is unreachable, of another version, with another time or without those folders.
    """
    async with Runtime(log_dir=log_dir, launcher=launcher, hosts_config=hosts_config, patience_s=patience_s) as runtime:
        transport = launcher.transport()
        if not transport:
            yield runtime
            return
        care = HostCare(runtime, transport.removeprefix("tcp://").rpartition(":")[0].strip("[]"))
        try:
            await care.start(shared)
            names = ", ".join(f"{host.name} ({host.address})" for host in runtime.hosts.all)
            note(f"hosts: {names}. Their messages are not encrypted and run code: use a private network only")
            yield runtime
        finally:
            await care.close()


class HostCare:
    """All hosts of a runtime."""

    def __init__(self, runtime: Runtime, controller: str) -> None:
        """controller: this process's address, as the hosts see it."""
        self._runtime = runtime
        self._controller = controller
        self._keepers = [Keeper(runtime, host, controller) for host in runtime.hosts.all]
        self._listening: list[asyncio.Task[None]] = []

    async def start(self, shared: Sequence[Path]) -> None:
        config = self._runtime.hosts.config

        async def check(keeper: Keeper) -> None:
            info, skew_s = await keeper.greet(config.start_timeout_s)
            check_host(keeper.host.name, info, skew_s, config.max_clock_skew_s)
            for folder in shared:
                await check_shared(keeper, folder.absolute())

        checked = await asyncio.gather(*map(check, self._keepers), return_exceptions=True)
        for error in filter(None, checked):  # of the first host in the user's order
            raise error
        self._listening = [asyncio.create_task(self._listen(keeper)) for keeper in self._keepers]

    async def close(self) -> None:
        for task in self._listening:
            task.cancel()
        await asyncio.gather(*self._listening, return_exceptions=True)
        await asyncio.gather(*(keeper.close() for keeper in self._keepers))

    async def _listen(self, keeper: Keeper) -> None:
        hosts, host, heard_s = self._runtime.hosts, keeper.host, time.monotonic()
        quarter_s = hosts.config.lost_after_s / 4
        while True:
            await asyncio.sleep(min(LISTEN_EVERY_S, quarter_s))
            if await keeper.answers(min(PROBE_S, quarter_s)) or (
                (host.lost or keeper.ended_itself) and await keeper.reconnect()
            ):
                heard_s = time.monotonic()
                if host.lost:
                    log.warning("host %s is back", host.name)
                    await keeper.clean_up()
                    hosts.found(host)
            elif not host.lost and time.monotonic() - heard_s > hosts.config.lost_after_s:
                reason = f"it has said nothing for {time.monotonic() - heard_s:.0f} s"
                log.warning("host %s is lost: %s", host.name, reason)
                hosts.lose(host, reason)


class Keeper:
    """Speaks with the agent of one host, and starts another when the host has come back without it."""

    def __init__(self, runtime: Runtime, host: Host, controller: str) -> None:
        self.host = host
        self._runtime = runtime
        self._controller = controller
        self._agent: ProcessGroup[HostAgent] | None = None
        self._served: dict[str, tuple[str, int]] = {}  # folder -> token and port

    @property
    def ended_itself(self) -> bool:
        """Whether the agent is dead, which a lost host's need not be."""
        return self._agent is None or self._agent.dead.done()

    async def greet(self, timeout_s: float) -> tuple[HostInfo, float]:
        """What the host is, and by how much its clock is ahead of ours, in seconds. Raises UserError."""
        try:
            self._agent = await self._start(timeout_s)
            asked_s = time.time()
            info = await self._agent.call_one(HostAgent.describe, self._controller, timeout_s=timeout_s)
        except Exception as error:  # of many kinds: it may not even have our code
            raise UserError(
                f"host {self.host.name} started no process of ours within {timeout_s:g} s; check that agentgym and "
                f"torchmonarch are installed there as here, and that it reaches {self._controller} on every port "
                f"(a run chooses them when it starts): {str(error) or type(error).__name__}"
            ) from error
        self.host.address, self.host.gpus, self.host.keeper = info.address, info.gpus, self
        return info, info.clock_s - (asked_s + time.time()) / 2

    async def answers(self, timeout_s: float) -> bool:
        if self._agent is None or self._agent.dead.done():
            return False
        with suppress(InfraError):
            await self._agent.call_one(HostAgent.probe, timeout_s=timeout_s)
            return True
        return False

    async def reconnect(self) -> bool:
        """Another agent, on a new connection where the launcher makes one."""
        old = self._agent
        try:
            if self.host.lost and self.host.again is not None:
                self.host.mesh = await self.host.again()
            self._agent = agent = await self._start(AGAIN_S)
            for folder, (token, port) in self._served.items():
                await agent.call_one(HostAgent.serve, folder, token, port, timeout_s=CALL_S)
        except Exception as error:
            log.debug("host %s is still away: %s", self.host.name, error)
            self._agent = old
            return False
        if old is not None:
            await old.stop(timeout_s=1.0)
        return True

    async def clean_up(self) -> None:
        """Kill what was left there when the host was lost."""
        while self.host.leftovers:
            with suppress(InfraError):  # it is gone again
                await self.kill(self.host.leftovers.pop())

    async def ended(self, process: ProcessId) -> str:
        return await self._known().call_one(HostAgent.ended, process, timeout_s=None)

    async def kill(self, process: ProcessId) -> None:
        await self._known().call_one(HostAgent.kill, process, timeout_s=CALL_S)

    async def serve(self, folder: str, token: str) -> int:
        port = await self._known().call_one(HostAgent.serve, folder, token, 0, timeout_s=CALL_S)
        self._served[folder] = (token, port)
        return port

    async def read(self, path: Path) -> bytes | None:
        return await self._known().call_one(HostAgent.read, str(path), timeout_s=CALL_S)

    async def write(self, path: Path, content: bytes) -> str:
        return await self._known().call_one(HostAgent.write, str(path), content, timeout_s=CALL_S)

    async def close(self) -> None:
        self.host.keeper = None
        if self._agent is not None:
            await self._agent.stop(timeout_s=1.0 if self.host.lost else 10.0)

    async def _start(self, timeout_s: float) -> ProcessGroup[HostAgent]:
        # Its log would be on a filesystem that may not be shared. It takes no GPU, but sees which there are.
        options = ActorOptions(logged=False, with_gpus=True, gpus_per_process=0)
        name = f"agent_{''.join(letter if letter.isalnum() else '_' for letter in self.host.name)}_{next(_numbers)}"
        group = ProcessGroup(self._runtime, name, HostAgent, (), options, on=self.host)
        try:
            await group.start(timeout_s=timeout_s)
        except BaseException:
            await group.stop(timeout_s=1.0)
            raise
        return group

    def _known(self) -> ProcessGroup[HostAgent]:
        if self._agent is None:
            raise InfraError(f"host {self.host.name} has no agent")
        return self._agent


def check_host(name: str, info: HostInfo, skew_s: float, max_skew_s: float) -> None:
    """Raises UserError for a host that would not fit this machine."""
    own = HostInfo.of_this(info.address).versions
    for package in PACKAGES:
        if info.versions[package] != own[package]:
            raise UserError(
                f"host {name} has {package} {info.versions[package]} and this machine {own[package]}; "
                "install the same version on all hosts"
            )
    if abs(skew_s) > max_skew_s:
        raise UserError(
            f"the clock of host {name} is {abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} this machine's, "
            f"and hosts.max_clock_skew_s is {max_skew_s:g}; synchronize them (NTP)"
        )


async def check_shared(keeper: Keeper, folder: Path) -> None:
    """Raises UserError for a host that sees another folder there, in either direction. The folder exists here."""
    name, nonce = keeper.host.name, secrets.token_hex(8)
    ours, theirs = folder / f".seen-{nonce}-here", folder / f".seen-{nonce}-there"
    try:
        ours.write_text(nonce)
        if await keeper.read(ours) != nonce.encode():
            raise UserError(
                f"host {name} does not see what this machine writes to {folder}; all hosts need one filesystem there: "
                "choose a folder of it with logging.runs_dir, and a model on it"
            )
        failed = await keeper.write(theirs, nonce.encode())
        if failed or not theirs.exists():
            raise UserError(
                f"host {name} could not write to {folder} so that this machine sees it: {failed or 'nothing came'}; "
                "checkpoints are written by the trainer's host, so give it the rights"
            )
    finally:
        ours.unlink(missing_ok=True)
        theirs.unlink(missing_ok=True)


async def check_model(runtime: Runtime, model: Path) -> None:
    """Raises UserError for a host that does not have the model's folder as this machine has it."""
    path = model.absolute() / "config.json"  # noqa: ASYNC240
    config = await asyncio.to_thread(path.read_bytes)
    keepers = [host.keeper for host in runtime.hosts.all if isinstance(host.keeper, Keeper)]
    found = await asyncio.gather(*(keeper.read(path) for keeper in keepers))
    for host, there in zip((keeper.host for keeper in keepers), found, strict=True):
        if there != config:
            raise UserError(
                f"host {host.name} does not have the model {model} as this machine has it; put it on a filesystem that "
                "all hosts share, or in the same place on each"
            )
