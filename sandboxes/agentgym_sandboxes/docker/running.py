"""What a program's answer means."""

from __future__ import annotations

import os
from typing import cast

from agentgym.sandbox import RunResult, RunStatus
from agentgym_sandboxes.docker.agent.frames import Frame
from agentgym_sandboxes.docker.answers import blob, exits


def result_of(frame: Frame) -> RunResult:
    """What a program did."""
    status, exit_code = RunStatus.OK, None
    reason = frame.header["reason"]
    wait_status = exits(frame).get("program")
    if wait_status is not None:
        exit_code = os.waitstatus_to_exitcode(wait_status)
    if reason in ("timeout", "oom", "output_limit"):
        status = RunStatus(reason)
    elif blob(frame, "notes").startswith(b'["memory"]'):
        status = RunStatus.OOM
    elif exit_code != 0:
        status = RunStatus.ERROR
    return RunResult(
        status=status,
        exit_code=exit_code,
        stdout=blob(frame, "stdout").decode("utf-8", "replace"),
        stderr=blob(frame, "stderr").decode("utf-8", "replace"),
        truncated=bool(frame.header["truncated"]),
        wall_s=float(cast(float, frame.header["wall_s"])),
        cpu_s=float(cast(float, frame.header["cpu_s"])),
        memory_mib=float(cast(float, frame.header["memory_mib"])),
    )
