"""After a call: no process of its uid lives, and no file of it is left."""

from __future__ import annotations

import errno
import os
import signal
import stat

from .limits import home

FOLDERS = ("/work", "/tmp", "/dev/shm")  # where a call can leave files
_MAX_PATH = 2048
UNUSED_UID = 64999  # nobody's: to ask the kernel whether it can count the processes of a uid


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
        if not self._kernel_counts:
            return any(_runs_as(pid, uid) for pid in os.listdir("/proc") if pid.isdigit())
        try:
            os.getpriority(os.PRIO_USER, uid)
        except ProcessLookupError:
            return False
        return True

    def kill(self, uid: int) -> None:
        """SIGKILL to every process of `uid`, at once, so that a fork bomb can't outrun it."""
        os.seteuid(uid)
        try:
            os.kill(-1, signal.SIGKILL)
        except ProcessLookupError:
            pass
        finally:
            os.seteuid(0)

    def signal(self, uid: int, pid: int, number: int) -> None:
        """Signal one process, if it is there and of `uid`."""
        os.seteuid(uid)
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            pass
        finally:
            os.seteuid(0)

    def disk_use(self, uid: int) -> tuple[int, int]:
        """Bytes and inodes of the files of `uid`, as far as its folders go as deep as any reasonable ones."""
        num_bytes = num_files = 0
        os.seteuid(uid)
        try:
            for folder in FOLDERS:
                pending = [os.path.join(folder, name) for name in _owned(folder, uid)]
                while pending:
                    path = pending.pop()
                    info = os.lstat(path)
                    num_bytes, num_files = num_bytes + 512 * info.st_blocks, num_files + 1
                    if stat.S_ISDIR(info.st_mode) and len(path) < _MAX_PATH:
                        pending.extend(os.path.join(path, name) for name in os.listdir(path))
        except OSError:
            pass  # a folder that its mode closes
        finally:
            os.seteuid(0)
        return num_bytes, num_files

    def wipe(self, uid: int) -> bool:
        """Remove the files of `uid`; whether nothing is left. Its processes must be gone."""
        try:
            os.rmdir(home(uid))  # nearly always empty, or not there
        except OSError:
            pass
        for folder in FOLDERS:
            if not _owned(folder, uid):
                continue
            os.seteuid(uid)  # without CAP_DAC_OVERRIDE root may not look into its folders
            try:
                _remove_tree(folder, uid)
            except OSError:
                return False
            finally:
                os.seteuid(0)
            if _owned(folder, uid):
                return False
        return True


def _runs_as(pid: str, uid: int) -> bool:
    try:
        with open(f"/proc/{pid}/status") as file:
            status = file.read()
    except OSError:
        return False
    return f"\nUid:\t{uid}\t" in status and "\nState:\tX" not in status


def _owned(folder: str, uid: int) -> tuple[str, ...]:
    with os.scandir(folder) as entries:
        return tuple(e.name for e in entries if e.stat(follow_symlinks=False).st_uid == uid)


def _remove_tree(folder: str, uid: int) -> None:
    """Remove everything of `uid`. Folders are moved up before they are emptied.

    So no path gets long and nothing recurses, however deep the tree is.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
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
            try:
                for child in os.listdir(inner):
                    try:
                        os.unlink(child, dir_fd=inner)
                    except OSError:
                        os.chmod(child, 0o700, dir_fd=inner)
                        moved = f".sweep-{os.urandom(8).hex()}"  # a name that nobody can have taken first
                        os.rename(child, moved, src_dir_fd=inner, dst_dir_fd=top)
                        pending.append(moved)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
