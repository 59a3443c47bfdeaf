"""The parts of an agent's answer."""

from __future__ import annotations

from typing import cast

from agentgym.sandbox import SandboxLost
from agentgym_sandboxes.agent.frames import Frame


class Crowded(SandboxLost):
    """The calls beside it took the memory or the disk that it was allowed: it may be made again elsewhere."""


class NotAlone(Crowded):
    """Its tests use files or ports that calls of a container share: it has to be made again without others."""


NO_ANSWER = "a sandbox's agent sent an invalid answer"
_NUMBERS = ("wall_s", "cpu_s", "memory_mib")
_MOST = 1e300  # of a number: no NaN, no infinity, nothing too large for a float


def check_answer(frame: Frame) -> None:
    """Raises SandboxLost unless the header is that of an answer to a call: an agent of ours sends no other."""
    header = frame.header
    names, statuses = header.get("names"), header.get("exits")
    numbers = [header.get(name) for name in _NUMBERS]
    if "limit" in header:
        numbers += [header.get("used"), header.get("allowed")]
    if not (
        {"reason", "truncated"} <= header.keys()
        and isinstance(header["reason"], str | None)
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
        and len(names) <= len(frame.blobs)
        and isinstance(statuses, dict)
        and all(_has_ended(status) for status in statuses.values())
        and all(_is_number(number) for number in numbers)
    ):
        raise SandboxLost(NO_ANSWER)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and abs(value) < _MOST


def _has_ended(status: object) -> bool:
    """Whether it is the wait status of a process that exited or was ended by a signal."""
    return type(status) is int and 0 <= status < 1 << 16 and status & 0x7F != 0x7F


def blob(frame: Frame, name: str) -> bytes:
    """What the call wrote into the pipe of that name; empty when it has none."""
    names = cast("list[str]", frame.header["names"])
    return frame.blobs[names.index(name)] if name in names else b""


def exits(frame: Frame) -> dict[str, int]:
    """The wait status of each of the call's processes, by its operation."""
    return cast("dict[str, int]", frame.header["exits"])
