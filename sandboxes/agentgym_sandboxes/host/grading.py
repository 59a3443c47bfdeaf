"""What goes into the container for a grade, and what its answer means."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping
from typing import cast

from agentgym.errors import InfraError, UserError
from agentgym.sandbox import AssertCase, CallCase, GradeRequest, LimitHit, RunResult, RunStatus, SandboxLost, Verdict
from agentgym_sandboxes.agent import values
from agentgym_sandboxes.agent.frames import Frame, Header
from agentgym_sandboxes.agent.serve import NO_MEMORY
from agentgym_sandboxes.agent.values import Tree
from agentgym_sandboxes.host import judging, wording
from agentgym_sandboxes.host.answers import blob, check_answer, exits
from agentgym_sandboxes.host.judging import Answer, End, NoValue, Returned
from agentgym_sandboxes.host.running import limit_of
from agentgym_sandboxes.host.wording import Raised

LONG_BYTES = 1 << 18  # an answer that is not read at once
_FREE_PARTS = 100_000  # of an answer, whatever is expected
_GARBAGE = Raised("RuntimeError", "it wrote into the channel of its answers")


def grade_blobs(request: GradeRequest) -> list[bytes]:
    """The solution's payload, and the tests' when there is test source to run.

    The expected values of call cases stay on this side.
    """
    calls = [judging.question(case) for case in request.cases if isinstance(case, CallCase)]
    sources = [case.source for case in request.cases if isinstance(case, AssertCase)]
    blobs = [_json({"code": request.code, "entry": request.entry, "calls": calls})]
    if sources:
        tests = {"prelude": request.prelude, "entry": request.entry, "sources": sources}
        blobs.append(_json({**tests, "answer_bytes": request.limits.answer_mib << 20}))
    return blobs


def verdict_of(frame: Frame, request: GradeRequest) -> Verdict:
    """The verdict. Raises InfraError when it was the tests or the container that failed."""
    check_answer(frame)
    wall_s = float(cast(float, frame.header["wall_s"]))
    calls = [case for case in request.cases if isinstance(case, CallCase)]
    loaded, *answers = _lines(blob(frame, "answers"), 1 + len(calls)) or [b'["ok"]']
    if _tree(loaded) != ["ok"]:
        return judging.load_failure(request.cases, _raised(_tree(loaded)), wall_s)
    failures, said_too_much = _failures(frame, request)
    return judging.assemble(
        request.cases,
        [_call_answer(line, case) for line, case in zip(answers, calls, strict=False)],
        failures,
        _end(frame, request, "output_limit" if said_too_much else frame.header["reason"]),
        wall_s=wall_s,
    )


def verdict_of_output(request: GradeRequest, output: bytes, result: RunResult) -> Verdict:
    """The verdict on a trusted solution, by what the program `agent.trusted` printed."""
    num_answers = 1 + sum(isinstance(case, CallCase) for case in request.cases)
    lines = output.split(b"\n")[:-1]
    code = result.exit_code or 0
    status = code << 8 if code >= 0 else -code  # as `wait` gives it
    reason = "ended" if result.status in (RunStatus.OK, RunStatus.ERROR) else str(result.status)
    header: Header = {"reason": reason, "exits": {"serve": status}, "truncated": False, "names": ["answers", "verdict"]}
    header.update(wall_s=result.wall_s, cpu_s=result.cpu_s, memory_mib=result.memory_mib)
    blobs = [b"".join(line + b"\n" for line in part) for part in (lines[:num_answers], lines[num_answers:])]
    return verdict_of(Frame(header, blobs), request)


def joined(answers: Mapping[str, Frame]) -> Frame:
    """One answer out of those of the solution's side and of the tests', as `agent.streamed` gives them.

    The solution may have written its own, so of that only its answers and its end count. Without one, it has taken
    its side's process down. Raises SandboxLost when the tests' side gave none.
    """
    header: Header = {"reason": None, "exits": {"serve": int(signal.SIGKILL)}, "truncated": False, "names": ["answers"]}
    header.update(wall_s=0.0, cpu_s=0.0, memory_mib=0.0)
    blobs = [b""]
    with contextlib.suppress(KeyError, SandboxLost):
        frame = answers["serve"]
        check_answer(frame)
        header = {**frame.header, "exits": {"serve": exits(frame).get("serve", 0)}, "names": ["answers"]}
        blobs = [blob(frame, "answers")]
    if "judge" in answers:
        tests = answers["judge"]
        check_answer(tests)
        if header["reason"] is None:
            header = {**tests.header, **header, "reason": tests.header["reason"]}
        header["names"] = ["answers", "verdict"]
        blobs.append(blob(tests, "verdict"))
    return Frame(header, blobs)


def _end(frame: Frame, request: GradeRequest, reason: object) -> End:
    """How the solution's process ended."""
    limits, hit = request.limits, limit_of(frame)
    if reason == "timeout":
        return End(RunStatus.TIMEOUT, wording.timeout_text(limits.wall_s), hit)
    if reason == "oom":
        return End(RunStatus.OOM, wording.OOM_TEXT, hit)
    if reason == "output_limit":
        if hit is None:  # it was the test side that stopped to listen
            hit = LimitHit(resource="answer_mib", used=limits.answer_mib, allowed=limits.answer_mib)
        return End(RunStatus.OUTPUT_LIMIT, wording.OUTPUT_TEXT, hit)
    code = os.waitstatus_to_exitcode(exits(frame).get("serve", 0))
    if code == NO_MEMORY:
        used = cast(float, frame.header["memory_mib"])
        hit = LimitHit(resource="memory_mib", used=used, allowed=limits.memory_mib)
        return End(RunStatus.OOM, wording.OOM_TEXT, hit)
    return End(RunStatus.ERROR, wording.exit_text(code))


def _failures(frame: Frame, request: GradeRequest) -> tuple[list[Raised | None], bool]:
    """What the test side said of each test, and whether it received too much from the solution.

    Raises InfraError when it failed by itself, UserError for a test that passes what can't cross.
    """
    tests = [case for case in request.cases if isinstance(case, AssertCase)]
    if not tests:
        return [], False
    lines = [_tree(line) for line in _lines(blob(frame, "verdict"), 2 + len(tests))]
    if not lines:
        if frame.header["reason"] is not None:
            return [], False  # the solution was ended before the tests began
        raise SandboxLost("the test side ended without a verdict")
    first, *rest = lines
    if _tag(first) == "x":
        raise InfraError(f"the tests' prelude failed: {wording.error_text(_raised(first))}")
    if _tag(first) == "s":
        return [_raised(["x", *cast("list[Tree]", first)[1:]])] * len(tests), False
    for line in rest:
        if isinstance(line, list) and _tag(line) == "t":
            raise UserError(f"a test passes a {line[1]} to the solution; it can't leave the tests' process")
    said_too_much = ["over"] in lines
    return [None if line == ["pass"] else _raised(line) for line in rest if line != ["over"]], said_too_much


def _tag(line: Tree) -> Tree:
    return line[0] if isinstance(line, list) and line else None


def _call_answer(line: bytes, case: CallCase) -> Answer:
    """A line of the solution's. One with many more parts than what is expected is not even read: that would hold up
    all other calls, and containers would take thirty times their room here."""
    num_parts = line.count(b",") + 1
    if num_parts > _FREE_PARTS:
        expected = [values.encode(case.expected), values.encode(case.expected_args)]
        if num_parts > 2 * values.text(expected).count(","):
            return NoValue(f"value of {num_parts} parts")
    return _answer(_tree(line))


def _answer(line: Tree) -> Answer:
    """A line of the solution's, read: from untrusted code, so it may hold anything."""
    if isinstance(line, list) and len(line) in (2, 3) and line[0] == "r":
        return Returned(line[1], _left(line[2]) if len(line) == 3 else None)
    if isinstance(line, list) and len(line) == 2 and line[0] == "n" and isinstance(line[1], str):
        return NoValue(line[1][:100])
    return _raised(line)


def _left(line: Tree) -> Returned | NoValue | None:
    """How the arguments were left."""
    if not isinstance(line, list) or len(line) != 2:  # one that is nested again and again is garbage, too
        return None
    answer = _answer(line)
    return answer if isinstance(answer, (Returned, NoValue)) else None


def _raised(line: Tree) -> Raised:
    if isinstance(line, list) and len(line) == 4 and line[0] == "x":
        _, kind, message, number = line
        if isinstance(kind, str) and isinstance(message, str) and isinstance(number, int):
            return Raised(kind[:100], message, number)
    return _GARBAGE


def _lines(data: bytes, most: int) -> list[bytes]:
    """The first whole lines of a blob: untrusted code may have written millions."""
    return data.split(b"\n", most)[:-1]


def _tree(line: bytes) -> Tree:
    """What a line holds; what is no JSON counts as garbage."""
    try:
        if len(line) < LONG_BYTES:
            return cast(Tree, json.loads(line, object_pairs_hook=_no_objects))
        # with functions of ours, other threads have their turns meanwhile
        return cast(Tree, json.loads(line, object_pairs_hook=_no_objects, parse_int=_int, parse_float=_float))
    except (ValueError, RecursionError):
        return "garbage"


def _no_objects(pairs: list[tuple[str, object]]) -> None:
    raise ValueError("the codec has no objects")


def _int(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError("the codec writes a large int as text")
    return int(digits)


def _float(digits: str) -> float:
    return float(digits)


def _json(value: object) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")  # which `json.loads` undoes
