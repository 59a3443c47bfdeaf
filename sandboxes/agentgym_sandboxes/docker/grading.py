"""What goes into the container for a grade, and what its answer means."""

from __future__ import annotations

import json
import os
from typing import cast

from agentgym.errors import InfraError
from agentgym.sandbox import (
    AssertCase,
    CallCase,
    GradeRequest,
    RunStatus,
    SandboxLost,
    Verdict,
)
from agentgym_sandboxes import judging, wording
from agentgym_sandboxes.docker.agent.frames import Frame
from agentgym_sandboxes.docker.agent.values import Tree
from agentgym_sandboxes.docker.answers import blob, exits
from agentgym_sandboxes.judging import Answer, NoValue, Returned
from agentgym_sandboxes.wording import Raised

_GARBAGE = Raised("RuntimeError", "it wrote into the channel of its answers")


def grade_blobs(request: GradeRequest) -> list[bytes]:
    """The solution's payload, and the tests' when there is test source to run.

    The expected values of call cases stay on this side.
    """
    calls = [judging.question(case) for case in request.cases if isinstance(case, CallCase)]
    sources = [case.source for case in request.cases if isinstance(case, AssertCase)]
    blobs = [_json({"code": request.code, "entry": request.entry, "calls": calls})]
    if sources:
        blobs.append(_json({"prelude": request.prelude, "entry": request.entry, "sources": sources}))
    return blobs


def verdict_of(frame: Frame, request: GradeRequest) -> Verdict:
    """The verdict. Raises InfraError when it was the tests or the container that failed."""
    wall_s = float(cast(float, frame.header["wall_s"]))
    answers = _lines(blob(frame, "answers"))
    status, ended_text = _ended(frame, request)
    if answers and answers[0] != ["ok"]:
        return judging.load_failure(request.cases, _raised(answers[0]), wall_s)
    failures = _failures(frame, request)
    return judging.assemble(
        request.cases,
        [_answer(line) for line in answers[1:]],
        failures,
        ended=status,
        ended_text=ended_text,
        wall_s=wall_s,
    )


def _ended(frame: Frame, request: GradeRequest) -> tuple[RunStatus, str]:
    """How the solution's process ended, and the words for a case that it left unanswered."""
    reason = frame.header["reason"]
    if reason == "timeout":
        return RunStatus.TIMEOUT, wording.timeout_text(request.limits.wall_s)
    if reason == "oom":
        return RunStatus.OOM, wording.OOM_TEXT
    if reason == "output_limit":
        return RunStatus.OUTPUT_LIMIT, wording.OUTPUT_TEXT
    code = os.waitstatus_to_exitcode(exits(frame).get("serve", 0))
    return RunStatus.ERROR, wording.exit_text(code)


def _failures(frame: Frame, request: GradeRequest) -> list[Raised | None]:
    """What the test side said of each test. Raises InfraError when it failed by itself."""
    if not any(isinstance(case, AssertCase) for case in request.cases):
        return []
    lines = _lines(blob(frame, "verdict"))
    if not lines:
        if frame.header["reason"] is not None:
            return []  # the solution was ended before the tests began
        raise SandboxLost("the test side ended without a verdict")
    if lines[0] != ["ok"]:
        raise InfraError(f"the tests' prelude failed: {wording.error_text(_raised(lines[0]))}")
    return [None if line == ["pass"] else _raised(line) for line in lines[1:]]


def _answer(line: Tree) -> Answer:
    """A line of the solution's: from untrusted code, so anything may stand there."""
    if isinstance(line, list) and len(line) == 2 and line[0] == "r":
        return Returned(line[1])
    if isinstance(line, list) and len(line) == 2 and line[0] == "n":
        return NoValue(str(line[1])[:100])
    return _raised(line)


def _raised(line: Tree) -> Raised:
    if isinstance(line, list) and len(line) == 4 and line[0] == "x":
        _, kind, message, number = line
        if isinstance(kind, str) and isinstance(message, str) and isinstance(number, int):
            return Raised(kind[:100], message, number)
    return _GARBAGE


def _lines(data: bytes) -> list[Tree]:
    """The whole lines of a blob; what is no JSON becomes None, and so counts as garbage."""
    trees: list[Tree] = []
    for line in data.split(b"\n")[:-1]:
        try:
            trees.append(cast(Tree, json.loads(line, object_pairs_hook=_no_objects)))
        except (ValueError, RecursionError):
            trees.append("garbage")
    return trees


def _no_objects(pairs: list[tuple[str, object]]) -> None:
    raise ValueError("the codec has no objects")


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
