"""One sandbox of bubblewrap's: what it sees, and the control group that it runs in."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentgym.sandbox import Limits, SandboxLost
from agentgym_sandboxes.bubblewrap.cgroups import Group, Parent
from agentgym_sandboxes.local.enclosure import environment
from agentgym_sandboxes.local.python import Python

MIB = 1 << 20
KEEPERS = 2  # of its processes: bubblewrap's own, and PID 1
OVERHEAD_MIB = 24  # of memory: PID 1 with its Python, and what the kernel keeps for processes
WORK_FILES, TMP_FILES = 4096, 1024
DEVICES = ("null", "zero", "full", "random", "urandom")
MASKED = ("kcore", "keys", "key-users", "latency_stats", "timer_list", "sched_debug", "interrupts")
_JOIN = 'for group in $1; do echo 0 >"$group" || exit 97; done; shift; exec "$@"'
# At a size of 1 the kernel runs no program of the host's for a crash; at 0 it does.
_NO_DUMPS = ("prlimit", "--core=1:1", "--")
_MOUNT = 'mount -t tmpfs -o "$1" files /dev/shm && mount -t tmpfs -o "$2" files /dev/pts || exit 98; shift 2; exec "$@"'
_PASSWD = b"root:x:0:0:root:/:/bin/false\nsandbox:x:1000:1000:sandbox:/work:/bin/sh\n"
_GROUP = b"root:x:0:\nsandbox:x:1000:\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all sandboxes of a backend have in common. bwrap: its path. program: the system call filter.

    counts_files: whether file systems with a limit on the number of files can be mounted.
    """

    bwrap: str
    python: Python
    parent: Parent
    program: bytes
    work_mib: int
    tmp_mib: int
    memory_mib: int
    counts_files: bool

    def most_memory_mib(self, memory_mib: int) -> int:
        """The memory limit of a group: files in memory and the keeper come on top of what the code may use."""
        return memory_mib + self.work_mib + self.tmp_mib + OVERHEAD_MIB


class BubblewrapEnclosure:
    """One sandbox. A shell joins the control group and then becomes bubblewrap, so nothing runs outside it."""

    def __init__(self, setting: Setting) -> None:
        """Raises OSError when no group can be made."""
        self._setting = setting
        self._group = Group(setting.parent)
        try:
            self._group.limit(setting.most_memory_mib(setting.memory_mib), 64)
        except OSError:
            self._group.remove()
            raise
        self._data = [_file(data) for data in (setting.program, _PASSWD, _GROUP)]

    @property
    def env(self) -> Mapping[str, str]:
        return environment("/work")

    @property
    def folder(self) -> str:
        return "/"

    def command(self, python: Sequence[str], control_fd: int) -> tuple[list[str], tuple[int, ...]]:
        seccomp, passwd, group = self._data
        setting = self._setting
        inside = [
            *("--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-net"),
            *("--unshare-cgroup", "--disable-userns"),
            *("--uid", "1000", "--gid", "1000", "--hostname", "sandbox"),
            *("--die-with-parent", "--new-session", "--as-pid-1", "--seccomp", str(seccomp)),
            *("--cap-drop", "ALL"),
            *_system(setting.python.folders),
            *("--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"),
            *_proc(),
            *_devices(),
            *self._own_folders(),
            *("--remount-ro", "/", "--chdir", "/work"),
        ]
        mounts = mount_command(setting.work_mib, setting.tmp_mib) if setting.counts_files else []
        shell = ["/bin/sh", "-c", _JOIN, "join", "\n".join(self._group.members)]
        dumps = _NO_DUMPS if resource.getrlimit(resource.RLIMIT_CORE)[1] != 0 else ()
        return [*shell, *dumps, *mounts, setting.bwrap, *inside, "--", *python], (control_fd, *self._data)

    def _own_folders(self) -> list[str]:
        setting = self._setting
        if setting.counts_files:
            return ["--bind", "/dev/shm", "/work", "--bind", "/dev/pts", "/tmp"]
        return [
            *("--perms", "0700", "--size", str(setting.work_mib * MIB), "--tmpfs", "/work"),
            *("--perms", "1777", "--size", str(setting.tmp_mib * MIB), "--tmpfs", "/tmp"),
        ]

    def limit(self, limits: Limits) -> None:
        self._close_data()
        try:
            self._group.limit(self._setting.most_memory_mib(limits.memory_mib), limits.processes + KEEPERS)
        except OSError as error:
            raise SandboxLost(f"a sandbox could not be limited: {error}") from error

    def num_oom_kills(self) -> int:
        return self._group.num_oom_kills()

    def memory_mib(self) -> tuple[float, float] | None:
        return self._group.memory_mib()

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # its death is PID 1's, and that is everyone's
        self._group.kill()

    def remove(self) -> bool:
        self._close_data()
        return self._group.remove()

    def _close_data(self) -> None:
        """What bubblewrap has read by now."""
        while self._data:
            os.close(self._data.pop())


def mount_command(work_mib: int, tmp_mib: int) -> list[str]:
    """What runs another command where /dev/shm and /dev/pts are empty file systems, with limits on their files.

    Bubblewrap's own have no limit on the number of files. Only in a mount namespace of that command's.
    """
    options = [
        f"nosuid,nodev,noexec,size={mib}m,nr_inodes={files},mode={mode}"
        for mib, files, mode in ((work_mib, WORK_FILES, "0700"), (tmp_mib, TMP_FILES, "1777"))
    ]
    return [*("unshare", "--user", "--map-root-user", "--mount", "--"), *("/bin/sh", "-c", _MOUNT, "mount", *options)]


def _system(folders: Iterable[str]) -> list[str]:
    """The parts of the system that programs need, read-only, and where the interpreter lives."""
    arguments: list[str] = []
    for name in ("bin", "lib", "lib32", "lib64"):
        top = Path("/") / name
        if top.is_symlink():
            arguments += ["--symlink", str(top.readlink()), str(top)]
        elif top.is_dir():
            arguments += ["--ro-bind", str(top), str(top)]
        arguments += ["--ro-bind-try", f"/usr/{name}", f"/usr/{name}"]
    for path in ("/usr/share/zoneinfo", "/etc/ld.so.cache", "/etc/localtime"):
        arguments += ["--ro-bind-try", path, path]
    if any(folder.startswith("/usr/local") for folder in folders):
        folders = [folder for folder in folders if not folder.startswith("/usr")]
        for name in ("bin", "lib"):
            arguments += ["--ro-bind", f"/usr/local/{name}", f"/usr/local/{name}"]
    if any(folder.startswith("/nix/store/") for folder in folders):
        folders = ["/nix/store"]  # its libraries lie in folders of their own
    for folder in folders:
        if folder != "/" and not folder.startswith("/usr"):
            arguments += ["--ro-bind", folder, folder]
    return arguments


def _proc() -> list[str]:
    """A view of our own processes only, without what shows the host."""
    arguments = ["--proc", "/proc"]
    for name in MASKED:
        if Path("/proc", name).exists():
            arguments += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return arguments


def _devices() -> list[str]:
    """Devices without bubblewrap's --dev, whose file system has no size limit."""
    arguments = ["--size", "65536", "--tmpfs", "/dev"]
    for name in DEVICES:
        arguments += ["--dev-bind", f"/dev/{name}", f"/dev/{name}"]
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        arguments += ["--symlink", f"/proc/self/fd{target}", f"/dev/{name}"]
    return [*arguments, "--remount-ro", "/dev"]


def _file(data: bytes) -> int:
    """A descriptor that holds `data`, at its beginning."""
    fd = os.memfd_create("data")
    os.write(fd, data)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
