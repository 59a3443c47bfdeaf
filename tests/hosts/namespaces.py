"""Hosts on this machine: each has its own network, processes, mounts, name and /dev/shm. Needs root and iproute2.

The filesystem is shared, as on a cluster, but for the folders named as private. This machine reaches every host, and
is reached at `host.gateway`. Everything ends with this process, killed or not.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

PROGRAMS = ("ip", "bridge", "nsenter", "unshare", "setpriv", "mount")
ALL_NAMESPACES = ("--net", "--pid", "--mount", "--uts", "--ipc")
_networks = itertools.count(os.getpid())
# The first process of a host lasts as long as it. Ignored, SIGCHLD leaves no zombies of orphans.
FIRST_PROCESS = """
set -e
trap '' CHLD
hostname "$1"; shift
ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mount --bind "$1" /etc/hosts; shift
for folder; do mount -t tmpfs tmpfs "$folder"; done
echo ready
exec sleep infinity
"""


def why_unavailable() -> str:
    """Empty where hosts can be made."""
    if os.geteuid() != 0:
        return "hosts as namespaces need root"
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"hosts as namespaces need {', '.join(missing)}"
    made = subprocess.run(["unshare", *ALL_NAMESPACES, "--fork", "true"], capture_output=True, text=True)
    return made.stderr.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """code: negative for a signal. output: standard output and error together."""

    code: int
    output: str


@dataclass(slots=True)
class Running:
    """A command on a host. It is killed with the host, and at the end of `namespaces`."""

    process: asyncio.subprocess.Process  # nsenter; the command is its child, which dies with it

    @property
    def pid(self) -> int:
        """Of the command, as this machine sees it. Raises ProcessLookupError once it has ended."""
        found = _children(self.process.pid)
        if not found:
            raise ProcessLookupError(f"the command under process {self.process.pid} has ended")
        return found[0]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    async def wait(self) -> Finished:
        output, _ = await self.process.communicate()
        assert self.process.returncode is not None
        code = self.process.returncode
        return Finished(code=code if code < 128 else 128 - code, output=(output or b"").decode(errors="replace"))


@dataclass(slots=True, kw_only=True)
class NamespaceHost:
    """address: IPv4, on the interface `eth0`. gateway: of this machine, in the same network."""

    name: str
    address: str
    gateway: str
    port: str  # of the switch
    switch: int  # a process in its network
    hosts_file: Path
    private: Sequence[str] = ()
    first: subprocess.Popen[bytes] | None = None
    commands: list[Running] = field(default_factory=list)

    def boot(self) -> None:
        """Bring the host up, again after `kill`, with the same name and address and an empty /dev/shm."""
        made = ("unshare", *ALL_NAMESPACES, "--fork", "--kill-child", "--mount-proc")
        command = [*made, "sh", "-c", FIRST_PROCESS, "host", self.name, str(self.hosts_file), *self.private]
        self.first = first = subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
        assert first.stdout is not None
        if first.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.name} did not come up; see its errors above")
        veth = ("type", "veth", "peer", "eth0", "address", self.hardware_address, "netns", self.pid)
        _run("ip", "link", "add", self.port, "netns", self.switch, *veth)
        _inside(self.switch, "ip", "link", "set", self.port, "master", "switch", "up")
        _inside(self.pid, "ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        _inside(self.pid, "ip", "link", "set", "eth0", "up")
        _inside(self.pid, "ip", "route", "add", "default", "via", self.gateway)

    @property
    def hardware_address(self) -> str:
        """As a real card's, it outlives a reboot: the others remember it."""
        return "02:00:" + ":".join(f"{int(part):02x}" for part in self.address.split("."))

    @property
    def pid(self) -> int:
        """Of its first process, as this machine sees it."""
        assert self.first is not None, f"{self.name} is down"
        return _children(self.first.pid)[0]

    async def start(
        self, *command: str | Path, environment: Mapping[str, str] | None = None, output: Path | None = None
    ) -> Running:
        """Start a command there, in this folder and with this Python's programs. output: a file for what it prints."""
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        inside = ("nsenter", "--target", str(self.pid), *ALL_NAMESPACES, "--wdns=" + str(Path.cwd()))
        file = output.open("ab") if output is not None else None
        try:
            process = await asyncio.create_subprocess_exec(
                *inside,
                *("setpriv", "--pdeathsig", "KILL", *map(str, command)),
                stdin=subprocess.DEVNULL,
                stdout=file or subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": path, **(environment or {})},
                preexec_fn=_die_with_parent,
            )
        finally:
            if file is not None:
                file.close()
        self.commands.append(running := Running(process))
        return running

    async def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> Finished:
        """Run a command there to its end."""
        return await (await self.start(*command, environment=environment)).wait()

    def cut(self) -> None:
        """Take it off the network: what it sends and is sent is lost in silence, as when a switch fails."""
        _inside(self.switch, "bridge", "link", "set", "dev", self.port, "state", "0")

    def mend(self) -> None:
        """Bring it back after `cut`."""
        _inside(self.switch, "bridge", "link", "set", "dev", self.port, "state", "3")

    def kill(self) -> None:
        """End the host with everything on it, as a power failure does: nobody is told."""
        if self.first is None:
            return
        self.cut()  # else its kernel would close its connections
        os.kill(self.pid, signal.SIGKILL)
        self.first.wait()
        assert self.first.stdout is not None
        self.first.stdout.close()
        self.first = None
        subprocess.run(_within(self.switch, "ip", "link", "del", self.port), stderr=subprocess.DEVNULL)

    async def end(self) -> None:
        self.kill()
        for running in self.commands:
            with contextlib.suppress(ProcessLookupError):
                running.process.kill()
            await running.process.communicate()  # closes its pipe


@asynccontextmanager
async def namespaces(num_hosts: int, *, private: Sequence[str] = ()) -> AsyncIterator[list[NamespaceHost]]:
    """Hosts named host0, host1, … which know each other's names.

    private: folders that each host has for itself, empty at first.
    """
    number = next(_networks)
    network = f"10.{64 + number // 256 % 64}.{number % 256}"
    gateway, link = f"{network}.254", f"gym{number}"
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="agentgym-namespaces-")))
        hosts_file = folder / "hosts"
        names = [(f"host{index}", f"{network}.{index + 1}") for index in range(num_hosts)]
        lines = ["127.0.0.1 localhost", f"{gateway} gateway", *(f"{address} {name}" for name, address in names)]
        hosts_file.write_text("\n".join(lines) + "\n")
        lasting = ["unshare", "--net", "sh", "-c", "echo ready; exec sleep infinity"]
        switch = subprocess.Popen(lasting, stdout=subprocess.PIPE, preexec_fn=_die_with_parent)
        stack.enter_context(switch)
        stack.callback(switch.kill)
        assert switch.stdout is not None
        switch.stdout.readline()
        _inside(switch.pid, "ip", "link", "add", "switch", "type", "bridge")
        _inside(switch.pid, "ip", "link", "set", "switch", "up")
        _run("ip", "link", "add", link, "type", "veth", "peer", link, "netns", switch.pid)
        stack.callback(subprocess.run, ["ip", "link", "del", link], stderr=subprocess.DEVNULL)
        _inside(switch.pid, "ip", "link", "set", link, "master", "switch", "up")
        _run("ip", "address", "add", f"{gateway}/24", "dev", link)
        _run("ip", "link", "set", link, "up")
        hosts = []
        for name, address in names:
            host = NamespaceHost(
                name=name,
                address=address,
                gateway=gateway,
                port=f"to-{name}",
                switch=switch.pid,
                hosts_file=hosts_file,
                private=private,
            )
            stack.push_async_callback(host.end)
            host.boot()
            hosts.append(host)
        yield hosts


def _within(pid: int, *command: object) -> list[str]:
    return ["nsenter", "--target", str(pid), "--net", *map(str, command)]


def _inside(pid: int, *command: object) -> None:
    _run(*_within(pid, *command))


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _die_with_parent() -> None:
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


_libc = ctypes.CDLL(None)
