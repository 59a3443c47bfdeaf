"""What an engine says about itself, and what of it is not enough."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from agentgym.sandbox import SandboxUnavailable
from agentgym.types import Json

log = logging.getLogger(__name__)

MIB = 1 << 20
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """cgroup: the version of control groups and their driver, as a person reads it. data_root: where the
    engine's host keeps images and containers."""

    identity: str
    version: str
    cpus: int
    memory_mib: int
    architecture: str  # as images have it: amd64, arm64
    memory_limit: bool
    swap_limit: bool
    process_limit: bool
    seccomp: bool
    rootless: bool
    remapped: bool  # uids are mapped into a range of 65536
    cgroup: str
    runtimes: tuple[str, ...]
    data_root: str

    @property
    def detail(self) -> str:
        ways = [self.cgroup, *(["rootless"] if self.rootless else ["uids remapped"] if self.remapped else [])]
        return f"Docker Engine {self.version} ({', '.join(ways)})"


def facts_of(info: Mapping[str, Json]) -> EngineFacts:
    """Read the engine's answer to `info`. An older engine leaves fields out: then control groups are of version 1."""
    options = " ".join(cast("list[str]", info.get("SecurityOptions") or []))
    driver = str(info.get("CgroupDriver") or "none")
    enforces = driver != "none"  # a rootless engine without delegated control groups
    rootless = "name=rootless" in options
    return EngineFacts(
        identity=f"{info.get('ID')} {info.get('DockerRootDir')}",  # two engines of one host have one ID
        version=str(info.get("ServerVersion")),
        cpus=max(1, int(cast(int, info.get("NCPU") or 1))),
        memory_mib=int(cast(int, info.get("MemTotal") or 0)) >> 20,
        architecture=_ARCHITECTURES.get(machine := str(info.get("Architecture") or ""), machine),
        memory_limit=enforces and bool(info.get("MemoryLimit")),
        swap_limit=enforces and bool(info.get("SwapLimit")),
        process_limit=enforces and bool(info.get("PidsLimit")),
        seccomp="name=seccomp" in options,
        rootless=rootless,
        remapped=rootless or "name=userns" in options,
        cgroup=f"cgroup v{info.get('CgroupVersion') or 1}, {driver}" if enforces else "no cgroups",
        runtimes=tuple(sorted(cast("dict[str, Json]", info.get("Runtimes") or {}))),
        data_root=str(info.get("DockerRootDir") or ""),
    )


def check_facts(facts: EngineFacts, url: str, runtime: str | None, allow_missing_limits: bool) -> None:
    """Raises SandboxUnavailable for an engine that can't hold our containers, with what to do about it."""
    if runtime is not None and runtime not in facts.runtimes:
        raise SandboxUnavailable(
            f"the Docker engine at {url} has no runtime {runtime!r}; it has {', '.join(facts.runtimes)}. Install it "
            "and name it in the engine's daemon.json, or leave sandbox.options.runtime out."
        )
    missing = missing_limits(facts)
    if missing and not allow_missing_limits:
        raise SandboxUnavailable(
            f"the Docker engine at {url} enforces {'; '.join(missing)}. Or accept that with "
            "sandbox.options.allow_missing_limits true."
        )
    for lack in missing:
        log.warning("the Docker engine at %s enforces %s", url, lack)
    if facts.memory_limit and not facts.swap_limit:
        log.warning("the Docker engine at %s limits memory but not swap: boot its host with swapaccount=1", url)


def missing_limits(facts: EngineFacts) -> list[str]:
    """What the engine can't enforce, each with what to do about it."""
    delegate = (
        "delegate the control groups to your user: `Delegate=cpu cpuset io memory pids` in "
        "/etc/systemd/system/user@.service.d/delegate.conf, with cgroup v2, then log in again"
    )
    missing = []
    if not facts.memory_limit:
        cure = delegate if facts.rootless else "boot the host with `cgroup_enable=memory swapaccount=1`"
        missing.append(f"no limit on memory ({cure})")
    if not facts.process_limit:
        cure = delegate if facts.rootless else "use a kernel with CONFIG_CGROUP_PIDS"
        missing.append(f"no limit on the number of processes ({cure})")
    if not facts.seccomp:
        missing.append(
            "no filter of system calls (use a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp)"
        )
    return missing


def room_text(data_root: str, is_local: bool) -> str:
    """How much room there is where an engine keeps its containers, as far as it can be seen from here."""
    unseen = f"{data_root or 'its data root'} on the engine's host, whose free space can't be seen from here"
    if not is_local:
        return unseen
    try:
        room = os.statvfs(data_root)
    except OSError:  # it is another host's after all, or an ordinary user may not look into it
        return unseen
    free_mib, all_mib = (blocks * room.f_frsize / MIB for blocks in (room.f_bavail, room.f_blocks))
    return f"{data_root}, which has {free_mib:.1f} of {all_mib:.0f} MiB free and {room.f_favail} inodes"
