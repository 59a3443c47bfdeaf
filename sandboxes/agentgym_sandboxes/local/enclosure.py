"""Where one box runs: the command before its Python, and what ends it. One protocol, one way for each backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from agentgym.sandbox import Limits


def environment(home: str, **more: str) -> dict[str, str]:
    """The environment of a box's processes."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": home,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


class Enclosure(Protocol):
    """Made for one box, and removed after it."""

    @property
    def env(self) -> Mapping[str, str]:
        """The whole environment of the box."""

    @property
    def folder(self) -> str:
        """Where the box's first process starts, on the host."""

    def command(self, python: Sequence[str], control_fd: int) -> tuple[list[str], tuple[int, ...]]:
        """The argument list that runs `python`, and the descriptors that it must inherit."""

    def limit(self, limits: Limits) -> None:
        """Set what the call that is about to begin may use in all."""

    def num_oom_kills(self) -> int:
        """How many of its processes the kernel killed for memory."""

    def memory_mib(self) -> tuple[float, float] | None:
        """What all its processes together have used at most, and what they may; None when nothing counts it."""

    def kill(self, pid: int) -> None:
        """SIGKILL to all of it. pid: of its first process, which has not been waited for."""

    def remove(self) -> bool:
        """Give back what it holds; False while a process of it is still there."""
