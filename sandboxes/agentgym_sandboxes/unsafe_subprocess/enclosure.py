"""A folder for one call, and a process group. Neither holds anything back."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence

from agentgym.sandbox import Limits
from agentgym_sandboxes.local.enclosure import environment


class SubprocessEnclosure:
    """One call's folder, removed after it."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="agentgym-unsafe-")

    @property
    def env(self) -> Mapping[str, str]:
        return environment(self._folder, TMPDIR=self._folder)

    @property
    def folder(self) -> str:
        return self._folder

    def command(self, python: Sequence[str], control_fd: int) -> tuple[list[str], tuple[int, ...]]:
        return list(python), (control_fd,)

    def limit(self, limits: Limits) -> None:
        """Nothing limits them all together; each process limits itself."""

    def num_oom_kills(self) -> int:
        return 0

    def memory_mib(self) -> None:
        return None

    def kill(self, pid: int) -> None:
        """The process group: who left it lives on."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def remove(self) -> bool:
        shutil.rmtree(self._folder, ignore_errors=True)
        return True
