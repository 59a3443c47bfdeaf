"""The lock of a run's folder: one process writes it, and by the lock it knows where the folder is, if it was moved."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from agentgym.errors import InfraError, UserError
from agentgym.runs.files import writing


def take_lock(path: Path) -> IO[str]:
    """Takes the lock of a folder. Raises UserError when another process has it."""
    with writing(path / "lock"):
        file = (path / "lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the system frees it when the process ends
    except BlockingIOError:
        file.seek(0)
        owner = file.read().strip()
        file.close()
        raise UserError(
            f"run {str(path)!r} is being written by process {owner or 'unknown'}; end that one first"
        ) from None
    with contextlib.suppress(OSError):  # only a hint for the message above
        file.truncate(0)
        file.write(f"{os.getpid()} of {socket.gethostname()}")
        file.flush()
    return file


def is_locked(path: Path) -> bool:
    """Whether a process of this host writes the folder."""
    try:
        file = os.fdopen(os.open(path / "lock", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))  # a FIFO would block
        with file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def moved_error(folder: Path, lock: IO[str] | None) -> InfraError | None:
    """What to say of a folder that its place no longer holds; None while it does. lock: of who writes it."""
    if lock is None or _is_there(folder, lock):
        return None
    new = _folder_of(lock)
    if new is None:
        return InfraError(f"the folder {folder} was removed while the run wrote it, so the run ends; start it again")
    return InfraError(
        f"the folder {folder} was moved to {new} while the run wrote it, so the run ends. All that was saved is there: "
        f"`agentgym train --resume {new}` goes on (an evaluation: `agentgym eval --resume {new}`)"
    )


def current_folder(folder: Path, lock: IO[str]) -> Path:
    """Where the folder is that was locked there. Raises InfraError where it is gone."""
    error = moved_error(folder, lock)
    current = folder if error is None else _folder_of(lock)
    if current is None:
        assert error is not None
        raise error
    return current


def _folder_of(lock: IO[str]) -> Path | None:
    """None where it is gone, or the system does not say."""
    try:
        found = Path(f"/proc/self/fd/{lock.fileno()}").readlink()
        return found.parent if os.path.samestat(found.stat(), os.fstat(lock.fileno())) else None
    except OSError:
        return None


def _is_there(folder: Path, lock: IO[str]) -> bool:
    try:
        return os.path.samestat((folder / "lock").stat(), os.fstat(lock.fileno()))
    except OSError:
        return False
