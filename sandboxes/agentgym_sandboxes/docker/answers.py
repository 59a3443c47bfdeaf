"""The parts of an agent's answer."""

from __future__ import annotations

from typing import cast

from agentgym.sandbox import SandboxLost
from agentgym_sandboxes.docker.agent.frames import Frame


class Crowded(SandboxLost):
    """The calls beside it took the memory or the disk that it was allowed: it may be made again elsewhere."""


def blob(frame: Frame, name: str) -> bytes:
    """What the call wrote into the pipe of that name; empty when it has none."""
    names = cast("list[str]", frame.header["names"])
    return frame.blobs[names.index(name)] if name in names else b""


def exits(frame: Frame) -> dict[str, int]:
    """The wait status of each of the call's processes, by its operation."""
    return cast("dict[str, int]", frame.header["exits"])
