"""Processes of agents: what they start is killed with them, and what they write is kept up to a limit."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

INHERITED: Final = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "OMP_NUM_THREADS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
)
TAG: Final = "AGENTGYM_AGENT"  # a variable that all descendants of a process inherit, also those that leave its group
KILL_S: Final = 5.0


def tagged(environ: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """A tag for a new process, and its environment: what every program needs, and what is given.

    Nothing else of ours is passed on: the keys of the user's own accounts are not the agent's.
    """
    tag = secrets.token_hex(12)
    inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return tag, {**inherited, **environ, TAG: tag}


def kill_all(leader: int | None, tag: str) -> None:
    """Kill a process with its group, and all others that carry its tag. The caller waits for it.

    leader: None once it was waited for: its number may be another's by now.
    """
    if leader is not None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    until = time.monotonic() + KILL_S
    while time.monotonic() < until:
        found, unclear = _carriers(tag)
        for one in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(one, signal.SIGKILL)
        if not found and not unclear:
            return
        time.sleep(0.001)


def _carriers(tag: str) -> tuple[list[int], bool]:
    """Living processes with the tag, and whether one is just starting or ending, so that it can't be told of it yet.

    None where the system does not tell.
    """
    if sys.platform != "linux":
        return [], False
    sign, found, unclear = f"{TAG}={tag}".encode(), [], False
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # it is gone, or another user's
                environ = _memory(folder / "environ")
                if sign in environ.split(b"\0"):
                    found.append(int(folder.name))
                unclear = unclear or (not environ and _is_between(folder))
    return found, unclear


def _memory(file: Path) -> bytes:
    """What a file says that is read from a process's memory: nothing when it has none (any more)."""
    try:
        return file.read_bytes()
    except ProcessLookupError:
        return b""


def _is_between(folder: Path) -> bool:
    """Whether a process without an environment is in the midst of an exec or of its end, and not a kernel's thread."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    if state in "ZX" or parent in ("0", "2"):
        return False
    return not _memory(folder / "cmdline") or bool(_memory(folder / "environ"))  # its exec may have ended just now


def has_children(pid: int) -> bool:
    """Whether a process has children of its own; false where the system does not tell."""
    try:
        return any(task.read_text().split() for task in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return False


class Tail:
    """The end of a text that is written in pieces. num_bytes: of all that was written."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._kept = bytearray()
        self.num_bytes = 0

    def add(self, piece: bytes) -> None:
        self.num_bytes += len(piece)
        self._kept += piece
        if len(self._kept) > 2 * self._max_bytes:
            del self._kept[: -self._max_bytes]

    def text(self) -> str:
        kept = bytes(self._kept[-self._max_bytes :])
        cut = self.num_bytes - len(kept)
        return (f"[{cut} bytes before this]\n" if cut else "") + kept.decode("utf-8", "replace")
