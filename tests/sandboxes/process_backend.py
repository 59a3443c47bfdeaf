"""A sandbox as a third party would write it: processes, judged by `agentgym.grading`. It holds nothing back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Self

from agentgym import GradeRequest, Limits, RunResult, RunStatus, SandboxSpec, Verdict
from agentgym.grading import ByteReader, ByteWriter, grade_strictly, grade_trusted
from agentgym.sandbox import DEFAULT_LIMITS, Capabilities, SandboxBackend


class ProcessBackend(SandboxBackend):
    name = "process"

    def __init__(self, *, strict: bool = True) -> None:
        self.strict = strict

    def supports(self, spec: SandboxSpec) -> bool:
        return not spec.session and spec.image is None

    async def probe(self) -> Capabilities:
        return Capabilities(backend=self.name, detail="plain processes", full_python=True)

    async def start(self) -> Self:
        return self

    async def close(self) -> None: ...

    async def run(self, code: str, *, stdin: str = "", limits: Limits = DEFAULT_LIMITS) -> RunResult:
        began_s = time.monotonic()
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            async with self._python(code, stdout=out, stderr=errors) as process:
                try:
                    async with asyncio.timeout(limits.wall_s):
                        await process.communicate(stdin.encode())
                    status = RunStatus.ERROR if process.returncode else RunStatus.OK
                except TimeoutError:
                    status = RunStatus.TIMEOUT
            stdout, stderr = (os.pread(file.fileno(), limits.output_bytes, 0).decode() for file in (out, errors))
        wall_s = time.monotonic() - began_s
        return RunResult(status=status, exit_code=process.returncode, stdout=stdout, stderr=stderr, wall_s=wall_s)

    async def grade(self, request: GradeRequest) -> Verdict:
        if self.strict:
            return await grade_strictly(request, self.run, self.connect)
        return await grade_trusted(request, self.run)

    @asynccontextmanager
    async def connect(self, program: str, limits: Limits) -> AsyncIterator[tuple[ByteReader, ByteWriter]]:
        async with self._python(program, stdout=-1) as process:
            assert process.stdout is not None and process.stdin is not None
            yield process.stdout, process.stdin

    @asynccontextmanager
    async def _python(self, program: str, **streams: Any) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process in a folder of its own; both are gone afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-s", "-c", program), cwd=folder, start_new_session=True, stdin=-1, **streams
            )
            try:
                yield process
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.communicate()
