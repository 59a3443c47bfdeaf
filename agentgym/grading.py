"""Graders for sandboxes of plugins: cases judged as in ours, in the same words.

`grade_trusted` needs nothing but the backend's `run`, and is for code that is trusted. `grade_strictly` is for what a
model wrote: solution and tests run in sandboxes of their own, and the expected values never enter the solution's. Both
run solutions in a CPython of version 3.9 or later, on Linux.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agentgym.cases import DEFAULT_LIMITS, CaseResult, GradeRequest, Limits, RunResult, RunStatus, Verdict
from agentgym.sandbox import SandboxUnavailable

if TYPE_CHECKING:
    from agentgym_sandboxes.agent.frames import Frame, Header

_STARTS_WITHIN_S = 60.0
_GRACE_S = 5.0  # beyond the wall limit, which each side keeps by itself
_ENDS_WITHIN_S = 2.0  # a solution, after its tests
_PIECE = 1 << 16


class Run(Protocol):
    """A sandbox's `run`."""

    async def __call__(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult: ...


class ByteReader(Protocol):
    """What a process writes to its standard output; an `asyncio.StreamReader` is one."""

    async def read(self, n: int = -1, /) -> bytes:
        """At most n bytes, as soon as there are some; b"" at the end."""


class ByteWriter(Protocol):
    """A process's standard input; an `asyncio.StreamWriter` is one."""

    def write(self, data: bytes, /) -> None: ...

    async def drain(self) -> None:
        """Wait until the process has taken enough of what was written."""


Connect: TypeAlias = Callable[[str, Limits], AbstractAsyncContextManager[tuple[ByteReader, ByteWriter]]]
"""Starts Python in a new sandbox, `python3 -s -c PROGRAM`, and gives its standard output and input.

PROGRAM is the first argument, of about 90 KB. The program keeps the limits of a call by itself; the second argument is
for a sandbox that enforces them, too. Leaving the block ends the sandbox with all that runs in it. Raises InfraError
where the sandbox, not the program, fails.
"""


async def grade_trusted(request: GradeRequest, run: Run, *, at_a_time: int = 4) -> Verdict:
    """Judge code that is trusted: it could forge its verdict, for the tests run in its process.

    at_a_time: programs of cases by standard input that run together. Raises InfraError when the sandbox or the tests
    failed.
    """
    from agentgym_sandboxes.agent.trusted import STARTED
    from agentgym_sandboxes.host import bundle, grading, stdio

    if stdio.judges_programs(request):
        return await stdio.grade_programs(request, run, at_a_time)
    payload: dict[str, object] = {"prelude": "", "sources": []}
    for blob in grading.grade_blobs(request):
        payload.update(json.loads(blob))
    room = request.limits.answer_mib << 20
    limits = replace(request.limits, output_bytes=max(room, request.limits.output_bytes))
    result = await run(bundle.agent_argument("trusted"), stdin=json.dumps(payload), limits=limits)
    if result.status is RunStatus.UNSUPPORTED:
        return _unsupported(request, result.stderr)
    output = result.stdout_bytes or result.stdout.encode()
    first, _, output = output.partition(b"\n")
    if first != json.dumps(STARTED).encode() and result.status in (RunStatus.OK, RunStatus.ERROR):
        said = result.stderr.strip().rpartition("\n")[2]
        raise SandboxUnavailable(f"the sandbox's `run` could not start the grader's program: {said or result.status}")
    return grading.verdict_of_output(request, output, result)


async def grade_strictly(request: GradeRequest, run: Run, connect: Connect, *, at_a_time: int = 4) -> Verdict:
    """Judge a solution that may do anything to pass, short of leaving its sandbox.

    connect: called once for the solution, and once more for tests in source. run, at_a_time: for cases by standard
    input. Raises InfraError when a sandbox or the tests failed.
    """
    from agentgym_sandboxes.host import bundle, grading, stdio

    if stdio.judges_programs(request):
        return await stdio.grade_programs(request, run, at_a_time)
    payloads = dict(zip(("serve", "judge"), grading.grade_blobs(request), strict=False))
    async with AsyncExitStack() as stack:
        program = bundle.agent_argument("streamed")
        ends = {op: _End(*await stack.enter_async_context(connect(program, request.limits))) for op in payloads}
        await _ready(ends)
        frames = await _played(ends, payloads, request.limits)
    return await asyncio.to_thread(grading.verdict_of, grading.joined(frames), request)


def _unsupported(request: GradeRequest, said: str) -> Verdict:
    error = " ".join(said.split()) or "the sandbox can't run it"
    results = tuple(CaseResult(passed=False, error=error) for _ in request.cases)
    return Verdict(status=RunStatus.UNSUPPORTED, results=results, error=error)


class _End:
    """Our end of one side's stream."""

    def __init__(self, reader: ByteReader, writer: ByteWriter) -> None:
        from agentgym_sandboxes.agent.frames import FrameReader

        self._reader = reader
        self._writer = writer
        self._frames = FrameReader()
        self._received: deque[Frame] = deque()

    async def receive(self) -> Frame:
        """The next frame. Raises EOFError at the end, and FrameError, a ValueError."""
        while not self._received:
            data = await self._reader.read(_PIECE)
            if not data:
                raise EOFError
            self._received.extend(self._frames.feed(data))
        return self._received.popleft()

    async def send(self, header: Header, *blobs: bytes) -> None:
        from agentgym_sandboxes.agent.frames import encode

        with suppress(OSError):  # it has ended: `receive` says how
            self._writer.write(encode(header, blobs))
            await self._writer.drain()


async def _ready(ends: Mapping[str, _End]) -> None:
    """Wait until Python has started on each side. Raises SandboxUnavailable."""
    try:
        async with asyncio.timeout(_STARTS_WITHIN_S):
            for end in ends.values():
                await end.receive()
    except (EOFError, ValueError) as error:
        raise SandboxUnavailable("the grader's program did not start in the sandbox; does it have python3?") from error
    except TimeoutError:
        raise SandboxUnavailable(f"the grader's program did not start within {_STARTS_WITHIN_S:g} s") from None


async def _played(ends: Mapping[str, _End], payloads: Mapping[str, bytes], limits: Limits) -> dict[str, Frame]:
    """The answer of each side; none of a side that did not keep to the protocol, or did not end."""
    from agentgym_sandboxes.host.running import wire_limits

    async def play(op: str) -> Frame | None:
        end, others = ends[op], [other for name, other in ends.items() if name != op]
        header: Header = {"op": op, "linked": bool(others), "limits": wire_limits(limits, limits.memory_mib)}
        await end.send(header, payloads[op])
        answer = None
        with suppress(EOFError, ValueError):
            while "link" in (frame := await end.receive()).header:
                for other in others:
                    await other.send({"link": True}, *frame.blobs)
            answer = frame
        for other in others:
            await other.send({"closed": True})
        return answer

    sides = {op: asyncio.create_task(play(op)) for op in ends}
    try:
        await asyncio.wait([sides.get("judge", sides["serve"])], timeout=limits.wall_s + _GRACE_S)
        await asyncio.wait(sides.values(), timeout=_ENDS_WITHIN_S)
        found = {op: side.result() for op, side in sides.items() if side.done()}
    finally:
        for side in sides.values():
            side.cancel()
        await asyncio.gather(*sides.values(), return_exceptions=True)
    return {op: frame for op, frame in found.items() if frame is not None}
