"""Which process takes memory of a shared GPU first.

vLLM measures what its GPU has left, and ends where another process frees memory meanwhile. A trainer therefore holds
its GPUs until it has compiled a step, and vLLM looks at its own when nobody holds them. The locks are the system's,
which frees them however a process ends.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from agentgym.actors.gpus import listed_gpus


class HeldGpus:
    """Those that this process may use, from now until `release`; other processes can hold them as well."""

    def __init__(self) -> None:
        self._files = ExitStack()
        for gpu in listed_gpus() or ():
            fcntl.flock(self._files.enter_context(_open(gpu)), fcntl.LOCK_SH)

    def release(self) -> None:
        """Safe to call twice."""
        self._files.close()


def wait_for_gpu(number: int) -> None:
    """Return when no process of this user holds the GPU that has this number here."""
    for gpu in (listed_gpus() or ())[number : number + 1]:
        with _open(gpu) as file:
            fcntl.flock(file, fcntl.LOCK_EX)


def _open(gpu: str) -> IO[bytes]:
    path = Path(tempfile.gettempdir()) / f"agentgym-{os.getuid()}-gpu-{gpu}.lock"
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), "r+b")
