"""What goes along with a program or a session's call, and what its answer means."""

from __future__ import annotations

import os
from typing import cast

from agentgym.sandbox import LimitHit, Limits, RunResult, RunStatus
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host.answers import blob, check_answer, exits

_LIMITS = ("timeout", "oom", "output_limit", "disk_limit", "process_limit")


def wire_limits(limits: Limits, most_memory_mib: int) -> dict[str, float]:
    """The limits of one call, as the agent takes them."""
    return {
        "wall_s": limits.wall_s,
        "cpu_s": float(limits.cpu_s),
        "memory_mib": float(min(limits.memory_mib, most_memory_mib)),
        "file_mib": float(limits.file_mib),
        "processes": float(limits.processes),
        "output_bytes": float(limits.output_bytes),
        "answer_mib": float(limits.answer_mib),
    }


def limit_of(frame: Frame) -> LimitHit | None:
    """The limit that ended a call, if one did."""
    header = frame.header
    if "limit" not in header:
        return None
    used, allowed = cast(float, header["used"]), cast(float, header["allowed"])
    return LimitHit(resource=str(header["limit"]), used=float(used), allowed=float(allowed))


def result_of(frame: Frame) -> RunResult:
    """What a program did, or a run or a command of a session. Raises SandboxLost for what is not an answer."""
    check_answer(frame)
    status, exit_code = RunStatus.OK, None
    header = frame.header
    wait_status = exits(frame).get("program")
    if wait_status is not None:
        exit_code = os.waitstatus_to_exitcode(wait_status)
    if header["reason"] in _LIMITS:
        status = RunStatus(header["reason"])
    elif exit_code != 0:
        status = RunStatus.ERROR
    stdout, stderr = blob(frame, "stdout"), blob(frame, "stderr")
    return RunResult(
        status=status,
        exit_code=exit_code,
        stdout=stdout.decode("utf-8", "replace"),
        stderr=stderr.decode("utf-8", "replace"),
        truncated=bool(header["truncated"]),
        wall_s=float(cast(float, header["wall_s"])),
        cpu_s=float(cast(float, header["cpu_s"])),
        memory_mib=float(cast(float, header["memory_mib"])),
        stdout_bytes=stdout,
        stderr_bytes=stderr,
        limit=limit_of(frame),
        state_lost=bool(header.get("state_lost", False)),
    )
