"""Ends a test side that is about to use what all calls of a container share: it is run again, alone.

A file that another call made under the same name, or a port that it holds, would decide about the tests.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from .sweep import FOLDERS

SHARED = 80  # the exit code of a test side that has to be alone
_FIRST_DYNAMIC_PORT = 32768  # of those that the kernel gives out: others were chosen
_OPENING = frozenset(("open", "os.chmod", "os.link", "os.listdir", "os.mkdir", "os.remove", "os.rename", "os.rmdir",
                      "os.scandir", "os.symlink", "os.truncate", "sqlite3.connect"))  # fmt: skip
_STARTING = frozenset(
    ("os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.Popen")
)


def leave_when_shared(folder: str) -> None:
    """Ends this process with SHARED as soon as it uses such a thing. folder: its own."""

    def watch(event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTING:  # nothing is seen of what another process does
            os._exit(SHARED)
        if event in _OPENING:
            paths = args[: 1 if event == "open" else 2]  # `rename` and the like have two
            if any(isinstance(path, (str, bytes)) and _is_shared(path, folder) for path in paths):
                os._exit(SHARED)
        if event == "socket.connect" and isinstance(args[1], tuple) and args[1][1] < _FIRST_DYNAMIC_PORT:
            os._exit(SHARED)
        if event == "socket.bind" and not (isinstance(args[1], tuple) and args[1][1] == 0):
            os._exit(SHARED)

    sys.addaudithook(watch)


def _is_shared(path: str | bytes, folder: str) -> bool:
    absolute = os.path.abspath(os.fsdecode(path)) + "/"
    return absolute.startswith(tuple(f"{top}/" for top in FOLDERS)) and not absolute.startswith(f"{folder}/")
