"""Control groups of version 2 and 1 that an ordinary user may make: one a call, with its memory and processes."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from agentgym.sandbox import SandboxUnavailable
from agentgym_sandboxes.host.reaper import is_orphan, owner_label

MIB = 1 << 20
SOCKETS_MIB = 16
CONTROLLERS = ("memory", "pids")
PREFIX = "agentgym."
OURS = "agentgym-host"  # of version 2: who makes groups in one must not stay in it
_SERIALS = itertools.count()
_HOW = {  # by the version of control groups
    2: "Start agentgym in a group of its own: `systemd-run --user --scope -p Delegate=yes agentgym ...`.",
    1: (
        "Let root make one in each hierarchy, and name it with --sandbox.options.cgroup /agentgym: "
        "`sudo mkdir -p /sys/fs/cgroup/memory/agentgym /sys/fs/cgroup/pids/agentgym` "
        "`sudo chown -R $USER /sys/fs/cgroup/memory/agentgym /sys/fs/cgroup/pids/agentgym`"
    ),
}


@dataclass(frozen=True, slots=True)
class Parent:
    """Where groups are made: one folder in version 2, one for each controller in version 1."""

    version: int
    memory: Path
    pids: Path

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.memory,) if self.version == 2 else (self.memory, self.pids)


class Group:
    """The control group of one box."""

    def __init__(self, parent: Parent) -> None:
        """Make it, without limits as yet. Raises OSError."""
        self._parent = parent
        self._name = f"{PREFIX}{next(_SERIALS)}.{owner_label().replace('/', '+')}"
        try:
            for folder in self._folders:
                folder.mkdir()
        except OSError:
            self.remove()
            raise

    @property
    def _folders(self) -> list[Path]:
        return [folder / self._name for folder in self._parent.folders]

    @property
    def members(self) -> list[str]:
        """The files that a process writes 0 into to join."""
        return [str(folder / "cgroup.procs") for folder in self._folders]

    def limit(self, memory_mib: int, processes: int) -> None:
        """What all in it may use together. Raises OSError when it uses more already."""
        memory, pids = self._parent.memory / self._name, self._parent.pids / self._name
        _write(pids / "pids.max", processes)
        if self._parent.version == 2:
            _write(memory / "memory.max", memory_mib * MIB)
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                _write(memory / "memory.swap.max", 0)
            return
        with contextlib.suppress(FileNotFoundError):  # version 1 counts what sockets hold only with a limit
            _write(memory / "memory.kmem.tcp.limit_in_bytes", SOCKETS_MIB * MIB)
        limits = [memory / "memory.limit_in_bytes", memory / "memory.memsw.limit_in_bytes"]
        if memory_mib * MIB > int(limits[0].read_text()):
            limits.reverse()  # the limit with swap must never be below the one without
        for limit in limits:
            with contextlib.suppress(FileNotFoundError):
                _write(limit, memory_mib * MIB)

    def num_oom_kills(self) -> int:
        name = "memory.events" if self._parent.version == 2 else "memory.oom_control"
        return _counted(self._parent.memory / self._name / name, "oom_kill")

    def memory_mib(self) -> tuple[float, float] | None:
        """The most it has used, and what it may; None when the kernel does not report it."""
        memory = self._parent.memory / self._name
        names = ("memory.peak", "memory.max")
        if self._parent.version == 1:
            names = ("memory.max_usage_in_bytes", "memory.limit_in_bytes")
        try:
            most, allowed = (int((memory / name).read_text()) for name in names)
        except (OSError, ValueError):
            return None
        return most / MIB, allowed / MIB

    def kill(self) -> None:
        """SIGKILL to every process in it."""
        for folder in self._folders:
            _kill_all(folder)

    def remove(self) -> bool:
        """Whether it is gone; it can't go while a process is in it."""
        return all([_remove(folder) for folder in self._folders])


def find_parent(wanted: str | None, root: Path = Path("/sys/fs/cgroup")) -> Parent:
    """The group to make others in. Raises SandboxUnavailable with the way to get one."""
    version = 2 if (root / "cgroup.controllers").exists() else 1
    mounts = {name: root if version == 2 else root / name for name in CONTROLLERS}
    own = _own_groups()
    folders = {}
    for name in CONTROLLERS:
        path = wanted if wanted is not None else own.get("" if version == 2 else name)
        if path is None or not mounts[name].is_dir():
            raise SandboxUnavailable(f"there is no control group of the controller {name!r} here. {_HOW[version]}")
        folders[name] = mounts[name] / path.strip("/")
        if version == 2 and folders[name].name == OURS:
            folders[name] = folders[name].parent
    for folder in dict.fromkeys(folders.values()):
        if not folder.is_dir():
            raise SandboxUnavailable(f"there is no control group {folder}. {_HOW[version]}")
        if not os.access(folder, os.W_OK) or not os.access(folder / "cgroup.procs", os.W_OK):
            raise SandboxUnavailable(
                f"memory and processes can't be limited: the control group {folder} is not ours to change. "
                f"{_HOW[version]}"
            )
    parent = Parent(version, folders["memory"], folders["pids"])
    if version == 2:
        _enable(parent.memory)
    return parent


def remove_stale(parent: Parent, say: Callable[[str], None]) -> int:
    """Remove the groups of owners that are gone, with all that still runs in them; how many there were."""
    removed: set[str] = set()
    for folder in parent.folders:
        for group in folder.glob(f"{PREFIX}*"):
            label = group.name.removeprefix(PREFIX).partition(".")[2].replace("+", "/")
            if is_orphan(label):
                _kill_all(group)
                if _remove(group):
                    removed.add(group.name)
    for name in sorted(removed):
        say(f"removed control group {name}, whose owner is gone")
    return len(removed)


def _own_groups(file: Path = Path("/proc/self/cgroup")) -> dict[str, str]:
    """Our group of each controller of version 1, and of version 2 under the name ''."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            found[name] = path
    return found


def _enable(folder: Path) -> None:
    """Hand memory and processes down to groups below. Raises SandboxUnavailable.

    A group that does so may hold no process: those in it, ours among them, move into one below.
    """
    missing = set(CONTROLLERS) - set((folder / "cgroup.controllers").read_text().split())
    if missing:
        raise SandboxUnavailable(
            f"the control group {folder} has no controller {', '.join(sorted(missing))}. {_HOW[2]}"
        )
    handed = (folder / "cgroup.subtree_control").read_text().split()
    if set(CONTROLLERS) <= set(handed):
        return
    try:
        (folder / OURS).mkdir(exist_ok=True)
        for pid in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                _write(folder / OURS / "cgroup.procs", int(pid))
        _write(folder / "cgroup.subtree_control", " ".join(f"+{name}" for name in CONTROLLERS))
    except OSError as error:
        raise SandboxUnavailable(f"the control group {folder} can't be divided: {error}. {_HOW[2]}") from error


def _write(file: Path, value: int | str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)  # never one that makes the file
    try:
        os.write(fd, str(value).encode())
    finally:
        os.close(fd)


def _counted(file: Path, key: str) -> int:
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, count = line.partition(" ")
            if name == key:
                return int(count)
    return 0


def _kill_all(folder: Path) -> None:
    try:
        _write(folder / "cgroup.kill", 1)
    except OSError:  # version 1, or an old kernel
        with contextlib.suppress(OSError):
            for pid in (folder / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)


def _remove(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True
