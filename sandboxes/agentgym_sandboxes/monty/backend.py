"""The monty sandbox: an asynchronous front on interpreters that block threads of their own."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Self, TypeVar

from agentgym.errors import pip_install
from agentgym.sandbox import (
    DEFAULT_LIMITS,
    Capabilities,
    GradeRequest,
    Limits,
    RunResult,
    SandboxBackend,
    SandboxUnavailable,
    Verdict,
)
from agentgym.types import SandboxSpec
from agentgym_sandboxes.host.backend import NOT_STARTED
from agentgym_sandboxes.host.meter import CallMeter
from agentgym_sandboxes.host.stdio import grade_programs, judges_programs
from agentgym_sandboxes.monty.config import MontyConfig
from agentgym_sandboxes.monty.privileges import confined_binary

if TYPE_CHECKING:
    from pydantic_monty import Monty

    from agentgym_sandboxes.monty.interpreter import Interpreter

Answer = TypeVar("Answer", RunResult, Verdict)


class MontyBackend(SandboxBackend):
    """A sandbox without an engine, for tasks whose spec allows the interpreter `monty`."""

    name = "monty"

    def __init__(self, config: MontyConfig | None = None) -> None:
        self.config = config or MontyConfig()
        self._pool: Monty | None = None
        self._interpreter: Interpreter | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._confined: TemporaryDirectory[str] | None = None
        self._meter = CallMeter()
        self._num_asked = 0  # calls that wait or run

    def supports(self, spec: SandboxSpec) -> bool:
        return (
            "monty" in spec.allow_interpreters
            and not spec.session
            and spec.image is None
            and spec.memory_mib <= self.config.memory_mib
        )

    async def probe(self) -> Capabilities:
        """What it enforces. Raises SandboxUnavailable when the package is missing, or root can't give up its rights."""
        version = await asyncio.to_thread(_version)
        if self._gives_up_root:
            (await asyncio.to_thread(confined_binary)).cleanup()
        return Capabilities(
            backend=self.name,
            detail=f"pydantic-monty {version}: an interpreter of a part of Python, without files or processes",
            isolated=True,
            network_off=True,
            memory_limit=True,
            process_limit=True,
        )

    async def start(self) -> Self:
        if self._interpreter is None:
            await asyncio.to_thread(_version)
            began_s = time.monotonic()
            await asyncio.to_thread(self._open)
            self._meter.start.add(time.monotonic() - began_s)
        return self

    async def close(self) -> None:
        """End the interpreters, after the calls under way; safe to call twice."""
        threads, self._threads = self._threads, None
        pool, self._pool = self._pool, None
        self._interpreter = None
        if threads is not None:
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)
        if pool is not None:
            await asyncio.to_thread(pool.__exit__, None, None, None)
        confined, self._confined = self._confined, None
        if confined is not None:
            confined.cleanup()

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        """Run a program. Raises InfraError when the interpreter, not the program, failed."""
        return await self._call(lambda interpreter: interpreter.run(code, limits))

    async def grade(self, request: GradeRequest) -> Verdict:
        """Judge a solution. Raises InfraError when the interpreter or the tests failed."""
        if judges_programs(request):
            return await grade_programs(request, self.run, self.config.num_workers)
        return await self._call(lambda interpreter: interpreter.grade(request))

    def metrics(self) -> dict[str, float]:
        return self._meter.metrics({"calls_waiting": max(0, self._num_asked - self.config.num_workers)})

    @property
    def _gives_up_root(self) -> bool:
        return os.geteuid() == 0 and not self.config.allow_root

    def _open(self) -> None:
        from pydantic_monty import Monty

        from agentgym_sandboxes.monty.interpreter import Interpreter

        workers = self.config.num_workers
        # A grade with assert cases takes two interpreters at a time: twice as many can't run dry.
        if self._gives_up_root:
            self._confined = confined_binary()
        binary = None if self._confined is None else f"{self._confined.name}/monty"
        pool = Monty(
            binary_path=binary, min_processes=workers, max_processes=2 * workers, max_checkouts_per_worker=2000
        )
        pool.__enter__()
        self._pool = pool
        self._interpreter = Interpreter(pool, self.config)
        self._threads = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="monty")

    async def _call(self, function: Callable[[Interpreter], Answer]) -> Answer:
        """Calls in a thread, once one is free."""
        interpreter, threads = self._interpreter, self._threads
        if interpreter is None or threads is None:
            raise SandboxUnavailable(NOT_STARTED)
        asked_s = time.monotonic()

        def work() -> tuple[Answer, float, float]:
            began_s = time.monotonic()
            answer = function(interpreter)
            return answer, began_s, time.monotonic()

        self._num_asked += 1
        try:
            with self._meter.counting_failures():
                working = asyncio.get_running_loop().run_in_executor(threads, work)
                try:
                    answer, began_s, ended_s = await working
                except asyncio.CancelledError:
                    task = asyncio.current_task()
                    if self._threads is threads or (task is not None and task.cancelling()):
                        raise
                    raise SandboxUnavailable("the sandbox was closed") from None
        finally:
            self._num_asked -= 1
        self._meter.answered(answer.status, queue_s=began_s - asked_s, wall_s=ended_s - began_s)
        return answer


def _version() -> str:
    try:
        import pydantic_monty  # noqa: F401
    except ImportError:
        raise SandboxUnavailable(
            f"the interpreter pydantic-monty is not installed. Install it with `{pip_install('monty')}`."
        ) from None
    return importlib.metadata.version("pydantic-monty")
