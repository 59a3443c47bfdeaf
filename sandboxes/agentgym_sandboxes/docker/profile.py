"""The settings of a hardened container, as the engine's API takes them."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from agentgym.types import Json
from agentgym_sandboxes.agent.main import SESSION_CHILD
from agentgym_sandboxes.docker.config import DockerConfig
from agentgym_sandboxes.host.bundle import agent_argument
from agentgym_sandboxes.host.seccomp import seccomp_text

MIB = 1 << 20
LABEL = "agentgym.sandbox"
OWNER_LABEL = "agentgym.owner"
ORIGIN_LABEL = "agentgym.origin"  # of a frozen container: what the image that it was made of says, as JSON
PACKAGES_LABEL = "agentgym.packages"  # of an image: what was added to it, as JSON
VOLUME_LABEL = "agentgym.volume"  # of a volume: which folder was copied into it
NUM_UIDS = 64
PROCESSES_PER_CALL = 32
PROCESSES_PER_SESSION = 160  # the agent allows fewer, so that it can always start one of its own
AGENT_FILE_MIB = 256  # it holds whole payloads in memory files, which count as files
ONE_THREAD = {  # numeric libraries start a pool as large as the machine when they are imported; a fork loses it
    name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
}
_TMPFS = "rw,nosuid,nodev,mode=1777"
_SHARED_MEMORY = f"{_TMPFS},noexec,size=16m,nr_inodes=256"  # for the locks and queues of multiprocessing

SettingsOf: TypeAlias = Callable[[DockerConfig, str, str, bool], dict[str, Json]]
"""Makes the body of a create call from config, image, owner, and whether uids are remapped."""


def first_uid(remapped: bool) -> int:
    """Where the uids of a container begin: no other's, for RLIMIT_NPROC counts a uid over the whole host.

    remapped: the engine maps uids into a range of 65536.
    """
    if remapped:
        return 10_000 + NUM_UIDS * secrets.randbelow(50_000 // NUM_UIDS)
    return (1 << 20) + NUM_UIDS * secrets.randbelow(1 << 23)


def _network_settings(remapped: bool) -> dict[str, Json]:
    """Settings of the kernel's connection memory, which is the host's: no container limit counts it."""
    settings: dict[str, Json] = {
        "net.ipv4.tcp_rmem": "4096 65536 262144",  # of a buffer
        "net.ipv4.tcp_wmem": "4096 65536 262144",
        "net.ipv4.tcp_max_tw_buckets": "0",  # a port that a call has used is the next one's at once
    }
    if not remapped:  # older kernels keep this one from those whose uids are mapped
        settings["net.core.somaxconn"] = "16"  # that wait to be accepted
    return settings


def container_settings(config: DockerConfig, image: str, owner: str, remapped: bool = False) -> dict[str, Json]:
    """The body of a create call.

    Root with two capabilities, because the agent needs another uid than the snippets; they end up with none.
    Init is off: PID 1 is the agent, which nothing inside can kill, and whose end is the container's.
    """
    limits = {"nofile": 1024, "core": 1, "fsize": AGENT_FILE_MIB * MIB, "memlock": 0, "msgqueue": 0}
    uids = [str(first_uid(remapped)), str(NUM_UIDS)]
    command = ["python3", "-s", "-c", agent_argument(), *uids, *config.preload]
    host: dict[str, Json] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": ["SETUID", "SETGID"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp_text()}"],
        "IpcMode": "none",
        "CgroupnsMode": "private",
        "Tmpfs": {
            "/work": f"{_TMPFS},noexec,size=64m,nr_inodes=4096",
            "/tmp": f"{_TMPFS},noexec,size=16m,nr_inodes=1024",
            "/dev/shm": _SHARED_MEMORY,
        },
        "Sysctls": _network_settings(remapped),
        "Memory": config.container_memory_mib * MIB,
        "MemorySwap": config.container_memory_mib * MIB,
        "NanoCpus": int(config.cpus * 1e9),
        "PidsLimit": PROCESSES_PER_CALL * config.slots + 32,
        "OomScoreAdj": 500,
        "Ulimits": [{"Name": name, "Soft": value, "Hard": value} for name, value in limits.items()],
        "LogConfig": {"Type": "none"},
        "Init": False,
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": True,
    }
    if config.runtime is not None:
        host["Runtime"] = config.runtime
    return {
        "Image": image,
        "Cmd": command,
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Env": [
            "PATH=/usr/local/bin:/usr/bin:/bin",
            "HOME=/work",
            "LANG=C.UTF-8",
            "PYTHONHASHSEED=0",
            "PYTHONDONTWRITEBYTECODE=1",
            *(f"{name}={value}" for name, value in ONE_THREAD.items()),
        ],
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Tty": False,
        "NetworkDisabled": True,
        "StopTimeout": 0,
        "Labels": {LABEL: "1", OWNER_LABEL: owner},
        "HostConfig": host,
    }


def session_settings(config: DockerConfig, settings: dict[str, Json], mounts: Sequence[Json] = ()) -> dict[str, Json]:
    """What is other in a session's container: it compiles and runs what it wrote, is alone, and has volumes."""
    num_inodes = max(4096, 64 * config.session_disk_mib)
    folders = {
        "/work": f"{_TMPFS},exec,size={config.session_disk_mib}m,nr_inodes={num_inodes}",
        "/tmp": f"{_TMPFS},exec,size=64m,nr_inodes=4096",
        "/dev/shm": _SHARED_MEMORY,
    }
    host = cast(dict[str, Json], settings["HostConfig"])
    # Its servers may be asked much at once; its agent looks after the connections that wait.
    sysctls = dict(cast(dict[str, Json], host.get("Sysctls", {})))
    if "net.core.somaxconn" in sysctls:
        sysctls["net.core.somaxconn"] = "128"
    command = [*cast("list[Json]", settings["Cmd"]), SESSION_CHILD]
    own: dict[str, Json] = {
        "Tmpfs": folders,
        "PidsLimit": PROCESSES_PER_SESSION,
        "Sysctls": sysctls,
        "Mounts": [*mounts],
    }
    return {**settings, "Cmd": command, "HostConfig": {**host, **own}}
