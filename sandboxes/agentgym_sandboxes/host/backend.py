"""What the sandboxes that run the agent's modules have in common: starts and closes in turn, calls and grades."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, Self, TypeVar

from agentgym.sandbox import DEFAULT_LIMITS, GradeRequest, Limits, RunResult, RunStatus, SandboxBackend, Verdict
from agentgym_sandboxes.agent.frames import Frame
from agentgym_sandboxes.host.grading import LONG_BYTES, grade_blobs, verdict_of
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.running import result_of
from agentgym_sandboxes.host.stdio import grade_programs, judges_programs

NOT_STARTED = "the sandbox is not started; use `async with` or await its start()"
OTHER_LOOP = "the sandbox was started in another event loop, which alone can use it"


class Outcome(Protocol):
    """What a call's answer means."""

    @property
    def status(self) -> RunStatus: ...
    @property
    def wall_s(self) -> float: ...


Answer = TypeVar("Answer", bound=Outcome)


async def read_answer(frame: Frame, answer_of: Callable[[Frame], Answer]) -> Answer:
    """What a call's answer means; a long one is read in a thread, for the loop serves all other calls."""
    if sum(map(len, frame.blobs)) < LONG_BYTES:
        return answer_of(frame)
    return await asyncio.to_thread(answer_of, frame)


class AgentBackend(SandboxBackend):
    """A sandbox that is started once a run. A subclass says where its calls run."""

    def __init__(self) -> None:
        self._meter = CallMeter()
        self._turns = asyncio.Lock()  # of starts and closes
        self._is_started = False

    @abstractmethod
    async def _start(self) -> None:
        """Leaves nothing behind when it fails."""

    @abstractmethod
    async def _stop(self) -> None:
        """Leave nothing behind."""

    @abstractmethod
    async def _call(
        self, op: str, blobs: Sequence[bytes], limits: Limits, answer_of: Callable[[Frame], Answer]
    ) -> Answer:
        """Make a call and count it. Raises InfraError when the sandbox failed."""

    @property
    @abstractmethod
    def _num_at_once(self) -> int:
        """How many programs of one grade run at a time."""

    async def start(self) -> Self:
        """Raises SandboxUnavailable with what to do."""
        async with self._turns:
            if not self._is_started:
                await self._start()
            self._is_started = True
        return self

    async def close(self) -> None:
        """Leave nothing behind; safe to call twice. Waits for a start, and goes on when it is cancelled."""

        async def close() -> None:
            async with self._turns:
                self._is_started = False
                await self._stop()

        await asyncio.shield(asyncio.create_task(close()))

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run a program. Raises InfraError when the sandbox, not the program, failed."""
        blobs = [code.encode("utf-8", "surrogatepass"), stdin.encode("utf-8", "surrogatepass")]
        return await self._call("program", blobs, limits, result_of)

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution: in one round trip, or a program a case. Raises InfraError when the sandbox failed."""
        if judges_programs(request):
            return await grade_programs(request, self.run, self._num_at_once)
        return await self._call("grade", grade_blobs(request), request.limits, lambda frame: verdict_of(frame, request))
