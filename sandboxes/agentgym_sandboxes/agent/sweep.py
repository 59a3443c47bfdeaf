"""Cleans up after a call: no process of its uid lives, and no file of it is left."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Set

from .limits import home
from .processes import EVERYONE, processes_of

FOLDERS = ("/work", "/tmp", "/dev/shm")  # where a call can leave files
MIN_KILLS = 50  # before what lives on is unkillable: the time may have passed while nothing ran
UNUSED_UID = 64999  # nobody's: to ask the kernel whether it can count the processes of a uid


class Held(Exception):
    """A call that still runs has folders in those that are to be wiped."""


class Sweeper:
    """Removes what a uid left behind. The caller's real uid must not be 0 and its saved uid must be 0."""

    def __init__(self) -> None:
        try:
            os.getpriority(os.PRIO_USER, UNUSED_UID)
            self._kernel_counts = False  # answers for a uid without processes: can't be believed
        except ProcessLookupError:
            self._kernel_counts = True
        except OSError:
            self._kernel_counts = False

    def has_processes(self, uid: int) -> bool:
        """Whether any process, a zombie included, runs as `uid`."""
        if uid == EVERYONE:
            return bool(processes_of(uid))
        if not self._kernel_counts:
            return any(_runs_as(pid, uid) for pid in os.listdir("/proc") if pid.isdigit())
        try:
            os.getpriority(os.PRIO_USER, uid)
        except ProcessLookupError:
            return False
        return True

    def kill(self, uid: int) -> None:
        """SIGKILL to every process of `uid`, at once, so that a fork bomb can't outrun it.

        Of EVERYONE even the zygote's: another takes its place.
        """
        _as_user(uid, os.kill, -1, signal.SIGKILL)

    def signal(self, uid: int, pid: int, number: int) -> None:
        """Signal one process, if it is there and of `uid`."""
        _as_user(uid, os.kill, pid, number)

    def yield_more(self, uid: int, nice: int) -> None:
        """Let every process and thread of `uid` yield to others; it can't take that back."""
        _as_user(uid, os.setpriority, os.PRIO_USER, uid, nice)

    def wipe(self, uid: int, neighbours: Set[int] = frozenset()) -> bool:
        """Remove the files of `uid`; whether nothing is left. Its processes must be gone.

        neighbours: uids that may still run. What one of them left in a folder of `uid` stays, closed to it, and is
        reported by `Held`. What others left there is removed as well.
        """
        held = False
        try:
            os.rmdir(home(uid))  # nearly always empty, or not there
        except OSError:
            pass
        for folder in FOLDERS:
            owners = [uid]
            while owners:
                owner = owners.pop()
                if not _owned(folder, owner):
                    continue
                try:
                    strangers = _remove_tree(folder, owner, neighbours)
                    owners.extend(stranger for stranger in strangers if stranger not in neighbours)
                    held = held or bool(strangers & neighbours)
                except OSError:
                    return False
                finally:
                    os.seteuid(0)
                if not strangers & neighbours and _owned(folder, owner):
                    return False
        if held:
            raise Held
        return True


def _as_user(uid: int, act: Callable[..., object], *arguments: int) -> None:
    """Do something to processes of `uid`, with its rights, or to one of EVERYONE's with root's; there may be none."""
    os.seteuid(max(uid, 0))
    try:
        act(*arguments)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.seteuid(0)


def _runs_as(pid: str, uid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            status = file.read()
    except OSError:
        return False
    return f"\nUid:\t{uid}\t" in status and "\nState:\tX" not in status


def _owned(folder: str, uid: int) -> tuple[str, ...]:
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            try:
                if entry.stat(follow_symlinks=False).st_uid == uid:
                    found.append(entry.name)
            except FileNotFoundError:  # a neighbour's, who removed it this moment
                pass
    return tuple(found)


def _remove_tree(folder: str, uid: int, neighbours: Set[int]) -> set[int]:
    """Remove everything of `uid`. Folders are moved up before they are emptied. Leaves us as that user.

    So no path gets long and nothing recurses, however deep the tree is. Folders of others inside are moved up as
    well, unless they are a neighbour's; returns whose there were.
    """
    strangers: set[int] = set()
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    os.seteuid(uid)  # without CAP_DAC_OVERRIDE root may not look into its folders
    top = os.open(folder, flags)
    try:
        pending = list(_owned(folder, uid))
        while pending:
            name = pending.pop()
            try:
                os.unlink(name, dir_fd=top)
                continue
            except OSError as error:
                if error.errno not in (errno.EISDIR, errno.EPERM):
                    raise
            os.chmod(name, 0o700, dir_fd=top)
            inner = os.open(name, flags, dir_fd=top)
            is_empty = True
            try:
                for child in os.listdir(inner):
                    try:
                        os.unlink(child, dir_fd=inner)
                        continue
                    except OSError:
                        owner = os.stat(child, dir_fd=inner, follow_symlinks=False).st_uid
                    if owner != uid:
                        strangers.add(owner)
                        if owner in neighbours:
                            is_empty = False
                            continue
                    moved = f".sweep-{os.urandom(8).hex()}"  # a name that nobody can have taken first
                    _open_folder(child, inner, owner, uid)
                    os.rename(child, moved, src_dir_fd=inner, dst_dir_fd=top)
                    if owner == uid:
                        pending.append(moved)
            finally:
                os.close(inner)
            if is_empty:
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    return strangers


def _open_folder(name: str, above: int, owner: int, uid: int) -> None:
    """Let `uid`, whom we are, move a folder of `owner`'s, who has no process."""
    if owner == uid:
        os.chmod(name, 0o700, dir_fd=above)
        return
    os.chmod(above, 0o711)
    os.seteuid(0)
    os.seteuid(owner)
    os.chmod(name, 0o777, dir_fd=above)
    os.seteuid(0)
    os.seteuid(uid)
    os.chmod(above, 0o700)
