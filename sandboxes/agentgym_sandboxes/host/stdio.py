"""Judges whole programs by what they print: each case is a run of its own, in any sandbox."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Protocol

from agentgym.errors import UserError
from agentgym.sandbox import CaseResult, GradeRequest, LimitHit, Limits, RunResult, RunStatus, StdioCase, Verdict
from agentgym_sandboxes.host import wording
from agentgym_sandboxes.host.judging import output_difference

_FAILED_WALLS = 4  # times the wall limit of one: what programs that fail may take together
_ROOM_BYTES = 4096  # of output beyond what is expected: white space that does not count


class Run(Protocol):
    """A sandbox's `run`."""

    async def __call__(self, code: str, *, stdin: str = "", limits: Limits = ...) -> RunResult: ...


def judges_programs(request: GradeRequest) -> bool:
    """Whether a request is about programs. Raises UserError when it is about functions as well."""
    programs = sum(isinstance(case, StdioCase) for case in request.cases)
    if 0 < programs < len(request.cases):
        raise UserError("cases by standard input don't mix with calls and assertions; make two requests")
    return programs > 0


async def grade_programs(request: GradeRequest, run: Run, at_a_time: int) -> Verdict:
    """Run the code on every case, so many at a time. The expected output stays here.

    After a timeout no further program is started, nor when those that failed took long together: failing slowly
    must not last until the episode's own deadline. Raises InfraError when the sandbox failed.
    """
    began_s = time.monotonic()
    cases = [case for case in request.cases if isinstance(case, StdioCase)]
    found: dict[int, RunResult] = {}
    waiting = iter(enumerate(cases))
    failed_s = 0.0

    async def work() -> None:
        nonlocal failed_s
        for index, case in waiting:
            too_long = failed_s >= _FAILED_WALLS * request.limits.wall_s
            if too_long or any(result.status in _LAST for result in found.values()):
                return
            room = len(case.expected.encode("utf-8", "surrogatepass")) + _ROOM_BYTES
            limits = replace(request.limits, output_bytes=max(request.limits.output_bytes, room))
            found[index] = await run(request.code, stdin=case.stdin, limits=limits)
            supported = found[index].status is not RunStatus.UNSUPPORTED
            if supported and _error(case, found[index], request.limits):
                failed_s += found[index].wall_s

    workers = [asyncio.create_task(work()) for _ in range(max(1, min(at_a_time, len(cases))))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return _verdict(request, cases, found, failed_s, time.monotonic() - began_s)


_LAST = (RunStatus.TIMEOUT, RunStatus.UNSUPPORTED)  # the other programs would end the same way
_JUDGED = (RunStatus.OK, RunStatus.ERROR)


def _verdict(
    request: GradeRequest, cases: list[StdioCase], found: dict[int, RunResult], failed_s: float, wall_s: float
) -> Verdict:
    ended = [found[index] for index in sorted(found) if found[index].status not in _JUDGED]
    unsupported = [result for result in ended if result.status is RunStatus.UNSUPPORTED]
    if unsupported:
        error = " ".join(unsupported[0].stderr.split()) or "the interpreter can't run it"
        results = tuple(CaseResult(passed=False, error=error) for _ in cases)
        return Verdict(status=RunStatus.UNSUPPORTED, results=results, error=error, wall_s=wall_s)
    errors = [
        _error(case, found[index], request.limits) if index in found else wording.NOT_REACHED
        for index, case in enumerate(cases)
    ]
    results = tuple(CaseResult(passed=not error, error=error) for error in errors)
    if not ended and len(found) < len(cases):
        most_s = _FAILED_WALLS * request.limits.wall_s
        return Verdict(
            status=RunStatus.TIMEOUT,
            results=results,
            error=wording.timeout_text(most_s),
            wall_s=wall_s,
            limit=LimitHit(resource="wall_s", used=failed_s, allowed=most_s),
        )
    return Verdict(
        status=ended[0].status if ended else RunStatus.OK,
        results=results,
        error=_ended_text(ended[0], request.limits) if ended else "",
        wall_s=wall_s,
        limit=ended[0].limit if ended else None,
    )


def _error(case: StdioCase, result: RunResult, limits: Limits) -> str:
    """What was wrong with a case; empty when nothing was."""
    if result.status not in _JUDGED:
        return _ended_text(result, limits)
    if result.exit_code is not None and result.exit_code < 0:
        return wording.exit_text(result.exit_code)
    if result.status is RunStatus.ERROR:
        last = result.stderr.rstrip().rpartition("\n")[2]
        text = f"exited with code {result.exit_code}"
        return f"{text}: {wording.last_line_text(last)}" if last else text
    return output_difference(result.stdout, case.expected, case.tolerance)


def _ended_text(result: RunResult, limits: Limits) -> str:
    texts = {
        RunStatus.TIMEOUT: wording.timeout_text(limits.wall_s),
        RunStatus.OOM: wording.OOM_TEXT,
        RunStatus.OUTPUT_LIMIT: wording.FLOOD_TEXT,
        RunStatus.DISK_LIMIT: wording.DISK_TEXT,
        RunStatus.PROCESS_LIMIT: wording.PROCESS_TEXT,
    }
    return texts[result.status]
