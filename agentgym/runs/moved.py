"""Whether a run's folder is still in its place: one that was moved in mid-run must not begin again beside itself."""

from __future__ import annotations

import os
from pathlib import Path
from typing import IO

from agentgym.errors import InfraError


def moved_error(folder: Path, lock: IO[str] | None) -> InfraError | None:
    """What to say of a folder that its place no longer holds; None while it does. lock: of who writes it."""
    if lock is None or _is_there(folder, lock):
        return None
    new = place_of(lock)
    if new is None:
        return InfraError(f"the folder {folder} was removed while the run wrote it, so the run ends; start it again")
    return InfraError(
        f"the folder {folder} was moved to {new} while the run wrote it, so the run ends. All that was saved is there: "
        f"`agentgym train --resume {new}` goes on (an evaluation: `agentgym eval --resume {new}`)"
    )


def place_of(lock: IO[str]) -> Path | None:
    """Where the folder of a lock is now; None where it is gone, or the system does not say."""
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
