"""A session in an image that its task names: what the image says, and the settings of its container."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from agentgym.types import Json, SandboxSpec
from agentgym_sandboxes.agent.frames import Header
from agentgym_sandboxes.agent.main import SESSION_CHILD
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.docker.contexts import BuildContext
from agentgym_sandboxes.docker.image_facts import Image
from agentgym_sandboxes.docker.profile import MIB, ONE_THREAD, PROCESSES_PER_SESSION
from agentgym_sandboxes.docker.tree import PYTHON, TREE
from agentgym_sandboxes.docker.volumes import mount
from agentgym_sandboxes.host.bundle import agent_argument

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SESSION_PROCESSES = 96  # fewer than its container may have, so that the agent can always start one of its own
TASK_PROCESSES = 512
_READ_AGENT = """\
import os, sys
length, program = int(sys.argv.pop(1)), b""
while len(program) < length:
    program += os.read(0, length - len(program)) or sys.exit()
sys.orig_argv = ["python3", "-c", program.decode()]
exec(program)
"""  # it comes on standard input: `ps` in a task's image is not to print all of it
_READ_ONLY: list[Json] = [  # the engine's, and what would have the kernel kill the agent when memory ends
    *("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"),
    *("/proc/1/oom_score_adj", "/proc/1/oom_adj"),
]
_OF_AGENT = ("LC_ALL=C", "PYTHONUTF8=1", "OPENSSL_CONF=/.agentgym/none")  # no code by an image's locales and settings
_OF_HARDENED = ("ReadonlyRootfs", "CapDrop", "CapAdd", "SecurityOpt", "Tmpfs", "Ulimits", "IpcMode")


@dataclass(frozen=True, slots=True)
class Request:
    """What a session runs in: an image, by name, id or digest, under a profile, with so much memory and CPU.

    what, build_timeout_s: how it is made on an engine that lacks it. only_on: the address of the one that has it.
    bridge: it has the engine's own network. once: few sessions will be asked for, so none is kept warm. beside: an
    episode waits for it that has a session already.
    """

    image: str
    profile: str
    memory_mib: int
    name: str = field(default="", compare=False)  # of the image, for a person
    cpus: float = 0.0
    bridge: bool = False
    once: bool = False
    beside: bool = False
    what: str | BuildContext = field(default="", compare=False)
    only_on: str = field(default="", compare=False)
    build_timeout_s: float = field(default=1200.0, compare=False)

    @property
    def is_by_id(self) -> bool:
        """Whether its image can't be made, only be there."""
        return self.image.startswith("sha256:")


def request_of(spec: SandboxSpec, config: DockerConfig, ours: str) -> Request | None:
    """None for a session in our own image. ours: its name."""
    profile = spec.profile or config.session_profile
    what: str | BuildContext | None = spec.image or config.session_image
    if spec.context is not None:
        what = BuildContext(str(Path(spec.context).absolute()), spec.dockerfile)
    image = None if what is None else str(what)
    if image in (None, ours) and profile == "hardened":
        return None
    most = config.container_memory_mib
    image = image or ours
    if profile != "task":
        return Request(image, profile, most, image, what=what or ours, build_timeout_s=spec.build_timeout_s)
    bridge = spec.network == "public" and config.public_network == "bridge"
    memory, cpus = max(most, spec.memory_mib), spec.cpus or config.cpus
    made = Request(image, profile, memory, image, cpus, bridge, beside=spec.beside, what=what or ours)
    return replace(made, build_timeout_s=spec.build_timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """An image on one engine. tree: the volume there with our Python. most_cpus: that a container may have there."""

    request: Request
    image: Image
    tree: str
    url: str = ""
    most_cpus: float = 1e9

    @property
    def _is_task(self) -> bool:
        return self.request.profile == "task"

    def settings(self, settings: dict[str, Json]) -> dict[str, Json]:
        """The body of a create call, made of that of a session in our own image.

        Of the image's variables none reaches the agent: a name without a value takes one away.
        """
        command = cast("list[str]", settings["Cmd"])  # python3, its options, the agent, uids, modules
        uids = command[command.index("-c") + 2 :][:2]
        host = dict(cast("dict[str, Json]", settings["HostConfig"]))
        host["Mounts"] = [*cast("list[Json]", host["Mounts"]), mount(self.tree, TREE)]
        if self._is_task:
            for name in _OF_HARDENED:
                host.pop(name, None)
            memory = self.request.memory_mib * MIB
            host |= {"Memory": memory, "MemorySwap": memory, "PidsLimit": TASK_PROCESSES, "ReadonlyPaths": _READ_ONLY}
            host |= {
                "NanoCpus": int(min(self.request.cpus, self.most_cpus) * 1e9),
                "NetworkMode": "bridge" if self.request.bridge else "none",
            }
        else:
            folders = {folder: "rw,nosuid,nodev,mode=1777,size=1m" for folder in self.image.volumes}
            host["Tmpfs"] = {**folders, **cast("dict[str, Json]", host["Tmpfs"])}
        given = cast("list[str]", settings["Env"])
        names = {pair.partition("=")[0] for pair in [*given, *_OF_AGENT]}
        return {
            **settings,
            "NetworkDisabled": not self.request.bridge,
            "Image": self.image.image_id,
            "Entrypoint": [*PYTHON, "-s", "-c", _READ_AGENT],
            "Cmd": [str(len(agent_argument().encode())), *uids, SESSION_CHILD],  # and nothing else to preload
            "Env": [*given, *_OF_AGENT, *sorted({pair.partition("=")[0] for pair in self.image.env} - names)],
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": host,
        }

    def opening(self, config: DockerConfig, spec: SandboxSpec) -> Header:
        """What the agent is given when a session begins."""
        own = dict(pair.split("=", 1) for pair in self.image.env if "=" in pair)
        env = {"PATH": PATH, **({} if self._is_task else ONE_THREAD), **own}
        if not self._is_task:
            env.pop("HOME", None)  # its own is read-only
            return {**opening(config), "env": env, "own_python": False}
        return {
            "memory_mib": self.request.memory_mib,
            "file_mib": config.session_disk_mib,
            "processes": TASK_PROCESSES,
            "env": env | dict(pair.split("=", 1) for pair in spec.env),
            "own_python": False,
            "place": {"user": spec.user or self.image.user, "work": spec.workdir or self.image.folder},
        }


def opening(config: DockerConfig) -> Header:
    """What the agent is given when a session in our own image begins."""
    assert SESSION_PROCESSES < PROCESSES_PER_SESSION
    return {
        "memory_mib": config.memory_mib,
        "file_mib": config.session_disk_mib,
        "processes": SESSION_PROCESSES,
        "env": {"PATH": PATH, "LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1", **ONE_THREAD},
    }
